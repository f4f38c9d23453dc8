#!/usr/bin/env python3
"""Counts, summarises and compares texts: a plugbay plugin in plain Python 3.8.

It needs no SDK and no package. The first part is what a plugin is about: its tools. The
rest is protocol 1 at level L0, one call at a time, and can be taken over as it is. What
the rules are is written in sdk-spec/; ids such as [R-FR-03] point there.
"""

import collections
import csv
import difflib
import io
import json
import os
import re
import struct
import sys
import traceback


# ── Tools ─────────────────────────────────────────────────────────────────────

class Failed(Exception):
    """The tool did its work and the work failed; the model reads why."""


def count_words(text, top=10):
    """Counts the lines, words and characters of a text and shows its most frequent words."""
    words = re.findall(r"\w+", text.lower())
    frequent = collections.Counter(words).most_common(top)
    data = {"lines": len(text.splitlines()), "words": len(words), "characters": len(text),
            "frequent": [{"word": word, "times": times} for word, times in frequent]}
    head = "{lines} lines, {words} words, {characters} characters".format(**data)
    return "\n".join([head] + ["%6d  %s" % (times, word) for word, times in frequent]), data


def csv_summary(csv, delimiter=","):
    """Describes every column of a CSV text: how many values, of which kind, smallest, largest and mean."""
    rows = list(read_csv(csv, delimiter))
    if not rows:
        raise Failed("the text is empty")
    names, rows = rows[0], rows[1:]
    for at, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise Failed("row %d has %d values, and there are %d columns" % (at, len(row), len(names)))
    columns = [describe(name, [row[at] for row in rows]) for at, name in enumerate(names)]
    lines = ["%d rows" % len(rows)]
    for column in columns:
        facts = ", ".join("%s %s" % (key, column[key]) for key in list(column)[1:])
        lines.append("%s: %s" % (column["name"], facts))
    return "\n".join(lines), {"rows": len(rows), "columns": columns}


def read_csv(text, delimiter):
    try:
        yield from (row for row in csv.reader(io.StringIO(text), delimiter=delimiter, strict=True) if row)
    except csv.Error as error:
        raise Failed("this is not CSV: %s" % error)


def describe(name, values):
    present = [value.strip() for value in values if value.strip()]
    facts = {"name": name, "values": len(present), "empty": len(values) - len(present),
             "different": len(set(present))}
    try:
        numbers = [float(value) for value in present]
        if any(number != number or abs(number) == float("inf") for number in numbers):
            raise ValueError("no number that one can reckon with")
    except ValueError:
        numbers = []
    if numbers:
        return dict(facts, kind="number", smallest=min(numbers), largest=max(numbers),
                    mean=round(sum(numbers) / len(numbers), 6))
    if present:
        return dict(facts, kind="text", smallest=min(present), largest=max(present))
    return dict(facts, kind="empty")


def diff(before, after, context=3):
    """Compares two texts line by line and shows what differs, as a unified diff."""
    # A last line without a line end is a line too.
    parts = [text.splitlines() for text in (before, after)]
    lines = list(difflib.unified_diff(*parts, "before", "after", lineterm="", n=context))
    body = lines[2:]
    counts = {"added": sum(line[0] == "+" for line in body), "removed": sum(line[0] == "-" for line in body)}
    return "\n".join(lines) if lines else "no difference", counts


TOOLS = {tool.__name__: tool for tool in (count_words, csv_summary, diff)}
PLUGIN = {"name": "example.textkit", "version": "0.1.0"}
TRY = "plugbay call --plugin ./textkit.py count_words text='to be or not to be'"


def schema_of(name):
    """The JSON Schema of a tool's arguments: the file that plugin.toml names."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "schema", name + ".json"), encoding="utf-8") as file:
        return json.load(file)


SCHEMAS = {name: schema_of(name) for name in TOOLS}
TYPES = {"string": str, "integer": int}


def check_args(name, args):
    """What is wrong with the arguments, or nothing. A host checks too; this is for all others."""
    schema = SCHEMAS[name]
    if not isinstance(args, dict):
        return "expected a map"
    for missing in (key for key in schema["required"] if key not in args):
        return "missing: %s" % missing
    for key, value in args.items():
        want = schema["properties"].get(key)
        if want is None:
            return "unknown: %s" % key
        if type(value) is not TYPES[want["type"]]:
            return "%s: expected %s" % (key, want["type"])
        size = value if want["type"] == "integer" else len(value)
        low = want.get("minimum", want.get("minLength", size))
        high = want.get("maximum", want.get("maxLength", size))
        if not low <= size <= high:
            return "%s: expected %s to %s" % (key, low, high)
    return None


# ── MessagePack ───────────────────────────────────────────────────────────────

INTEGER_MAX = 2**53 - 1  # in heads [R-HD-07]
HEAD_DEPTH, BODY_DEPTH = 8, 128


def pack(value):
    """Encodes None, bool, int, float, str, bytes, list and dict with str keys."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value) if value < 0 else sized(value, 0x00, 0x80, {1: 0xCC, 2: 0xCD, 4: 0xCE, 8: 0xCF})
    if isinstance(value, str):
        raw = value.encode("utf-8", "replace")
        return sized(len(raw), 0xA0, 32, {1: 0xD9, 2: 0xDA, 4: 0xDB}) + raw
    if isinstance(value, bytes):
        return sized(len(value), 0x00, 0, {1: 0xC4, 2: 0xC5, 4: 0xC6}) + value
    if isinstance(value, list):
        return sized(len(value), 0x90, 16, {2: 0xDC, 4: 0xDD}) + b"".join(map(pack, value))
    pairs = b"".join(pack(key) + pack(item) for key, item in value.items())
    return sized(len(value), 0x80, 16, {2: 0xDE, 4: 0xDF}) + pairs


def sized(n, base, below, markers):
    """The shortest marker for a size: in one byte with `base` if it is below `below`."""
    if n < below:
        return bytes([base | n])
    width = next(width for width in markers if n < 256**width)
    return bytes([markers[width]]) + n.to_bytes(width, "big")


class Unpacker:
    """Decodes exactly one value; raises ValueError for whatever the spec does not allow."""

    NUMBERS = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q",
               0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
    SIZED = {0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4),
             0xD9: ("str", 1), 0xDA: ("str", 2), 0xDB: ("str", 4),
             0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4)}

    def __init__(self, data, depth_max, integer_max):
        self.data, self.at = data, 0
        self.depth_max, self.integer_max = depth_max, integer_max

    def only(self):
        value = self.value(0)
        if self.at != len(self.data):
            raise ValueError("bytes follow the value")
        return value

    def take(self, n):
        if len(self.data) - self.at < n:
            raise ValueError("it ends too early")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, depth):
        marker = self.take(1)[0]
        if marker < 0x80:
            return marker
        if marker >= 0xE0:
            return marker - 0x100
        if marker in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[marker]
        if marker in self.NUMBERS:
            form = ">" + self.NUMBERS[marker]
            number, = struct.unpack(form, self.take(struct.calcsize(form)))
            if isinstance(number, int) and number > self.integer_max:
                raise ValueError("an integer is too large")
            return number
        if marker < 0xC0:
            kind, n = ("map", marker & 15) if marker < 0x90 else ("array", marker & 15) if marker < 0xA0 else ("str", marker & 31)
        elif marker in self.SIZED:
            kind, width = self.SIZED[marker]
            n = int.from_bytes(self.take(width), "big")
        else:
            raise ValueError("an extension type")
        if kind == "str":
            return self.take(n).decode("utf-8")
        if kind == "bin":
            return self.take(n)
        if depth == self.depth_max:
            raise ValueError("nested too deeply")
        if kind == "array":
            return [self.value(depth + 1) for _ in range(n)]
        table = {}
        for _ in range(n):
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in table:
                raise ValueError("a key is no string, or stands twice")
            table[key] = self.value(depth + 1)
        return table


# ── Frames ────────────────────────────────────────────────────────────────────

HELLO, CLOSE, PING, PONG = 0x01, 0x02, 0x03, 0x04
CALL, ITEM, END, CANCEL, CREDIT, NOTE = 0x10, 0x11, 0x12, 0x13, 0x14, 0x90
KNOWN = {HELLO, CLOSE, PING, PONG, CALL, ITEM, END, CANCEL, CREDIT, NOTE}
HEADER = struct.Struct(">BBHII")
MAGIC = 0xC1
LIMITS = {"frame": 1 << 20, "window": 1 << 18, "calls": 1}
FLOOR = {"frame": 1 << 16, "window": 1 << 14, "calls": 1}
# Fields that the spec requires, and those it does not, with their types.
FIELDS = {HELLO: ({"limits": dict}, {"versions": list, "features": list, "host": dict}),
          CLOSE: ({"code": str}, {}),
          CALL: ({"method": str}, {"deadline": int, "idle": int, "in": bool, "scopes": list, "key": str, "attempt": int}),
          END: ({}, {"err": dict}),
          CANCEL: ({}, {"reason": str}),
          CREDIT: ({"n": int}, {}),
          NOTE: ({"topic": str}, {})}
MOST = {"attempt": 255}


class Violation(Exception):
    """The host broke a rule; the argument is the code for CLOSE."""


class Fault(Exception):
    """A call fails; the arguments are code, reason, retry and a text."""


def size_of(head_len, body_len):
    """The size of a frame, and its gap: bodies start at a multiple of 16. [R-FR-03]"""
    gap = -(HEADER.size + head_len) % 16 if body_len else 0
    return HEADER.size + head_len + gap + body_len, gap


class Wire:
    """The two pipes, as frames."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.frame_in_max = None  # not until HELLO
        self.frame_out_max = FLOOR["frame"]

    def send(self, kind, id, head, body=b""):
        head = pack(head)
        size, gap = size_of(len(head), len(body))
        if size > self.frame_out_max:
            raise Fault("resource_exhausted", "pb.frame_limit", "no", "the result is too large")
        self.writer.write(HEADER.pack(MAGIC, kind, len(head), id, len(body)) + head + bytes(gap) + body)
        self.writer.flush()

    def receive(self):
        """The next frame as (kind, id, head, body), None at the end of the stream."""
        while True:
            first = self.reader.read(1)
            if not first:
                return None
            if first[0] != MAGIC:
                raise Violation("protocol_error")
            _, kind, head_len, id, body_len = HEADER.unpack(first + self.read(HEADER.size - 1))
            size, gap = size_of(head_len, body_len)
            if size > (self.frame_in_max or (1 << 20 if kind == HELLO else 1 << 16)):
                raise Violation("frame_too_large")
            if kind not in KNOWN and kind < 0x80:
                raise Violation("unsupported_frame")
            head, zeros, body = self.read(head_len), self.read(gap), self.read(body_len)
            if head_len == 0 or any(zeros):
                raise Violation("protocol_error")
            if kind in KNOWN:
                return kind, id, self.head(kind, id, head), body

    def read(self, n):
        data = self.reader.read(n)
        if len(data) != n:
            raise Violation("protocol_error")  # the stream ended inside a frame
        return data

    @staticmethod
    def head(kind, id, raw):
        try:
            head = Unpacker(raw, HEAD_DEPTH, INTEGER_MAX).only()
        except ValueError:
            raise Violation("protocol_error")
        if not isinstance(head, dict) or (id != 0 and kind <= PONG):
            raise Violation("protocol_error")
        required, optional = FIELDS.get(kind, ({}, {}))
        for fields, needed in (required, True), (optional, False):
            for name, want in fields.items():
                got = head.get(name)  # nil and absent are the same
                if got is None and not needed:
                    continue
                if type(got) is not want or (want is int and not 0 <= got <= MOST.get(name, INTEGER_MAX)):
                    raise Violation("protocol_error")
        if isinstance(head.get("err"), dict) and type(head["err"].get("code")) is not str:
            raise Violation("protocol_error")
        return head


# ── The conversation ──────────────────────────────────────────────────────────

class Conversation:
    def __init__(self, wire):
        self.wire, self.active, self.highest, self.greeted = wire, False, 0, False

    def run(self):
        """Serves until the host lets go. Returns the exit code. [R-PR-05]"""
        while True:
            frame = self.wire.receive()
            if frame is None:
                return 0
            kind, id, head, body = frame
            if kind == CLOSE:
                return 0 if head["code"] == "ok" else 1
            # What is judged first is said in [R-FR-15].
            if kind == PING and len(body) > 64:
                raise Violation("protocol_error")
            if (kind == HELLO) == self.greeted:
                raise Violation("bad_state")
            if kind in (CALL, ITEM, END, CANCEL, CREDIT) and id == 0 or kind in (CALL, END) and id % 2 == 0:
                raise Violation("bad_id")
            if kind in (ITEM, CREDIT) or kind == CANCEL and id % 2 == 0:
                raise Violation("bad_state")
            if kind == HELLO:
                self.hello(head)
            elif kind == PING:
                self.wire.send(PONG, 0, {}, body)
            elif kind == CALL:
                if id <= self.highest:
                    raise Violation("bad_id")
                self.highest = id
                self.answer(id, head["method"], body)
            elif kind == END and id > self.highest:
                raise Violation("bad_id")
            # Else a late CANCEL or END, a PONG or a NOTE: there is nothing to do about it.

    def hello(self, head):
        if 1 not in (head.get("versions") or []):
            raise Violation("version_unsupported")
        for name, floor in FLOOR.items():
            limit = head["limits"].get(name)
            if type(limit) is not int or not floor <= limit < (1 << 16 if name == "calls" else 1 << 32):
                raise Violation("protocol_error")
        provides = [{"kind": "tool", "name": name, "description": tool.__doc__, "effect": "read",
                     "idempotent": True, "input_schema": SCHEMAS[name]} for name, tool in TOOLS.items()]
        self.greeted = True
        self.wire.frame_in_max = LIMITS["frame"]
        self.wire.frame_out_max = 1 << 20  # for this one frame
        self.wire.send(HELLO, 0, {"version": 1, "features": [], "limits": LIMITS, "plugin": PLUGIN},
                       pack({"provides": provides, "wants": []}))
        self.wire.frame_out_max = head["limits"]["frame"]

    def answer(self, id, method, body):
        """Exactly one END, whatever happens. [R-CA-01]"""
        try:
            self.wire.send(END, id, {}, pack(self.call(method, body)))
        except Fault as fault:
            self.fault(id, *fault.args)
        except Exception:
            traceback.print_exc()
            self.fault(id, "internal", None, "maybe", "the tool crashed; its stderr has the details")

    def fault(self, id, code, reason, retry, text):
        head = {"code": code, "retry": retry}
        if reason is not None:
            head["reason"] = reason
        self.wire.send(END, id, {"err": head}, pack({"msg": text}))

    def call(self, method, body):
        # The state gate, before the body is looked at. [R-GT-01]
        if not self.active and method != "plugin.activate":
            raise Fault("failed_precondition", "pb.inactive", "safe", "not active")
        if self.active and method == "plugin.activate":
            raise Fault("failed_precondition", "pb.already_active", "no", "active already")
        if method not in ("plugin.activate", "plugin.deactivate", "tool.call"):
            raise Fault("unimplemented", "pb.unknown_method", "no", "no such method")
        try:
            args = Unpacker(body, BODY_DEPTH, 2**64).only() if body else {}
        except ValueError as error:
            raise Fault("invalid_argument", "pb.bad_body", "no", str(error))
        if not isinstance(args, dict):
            raise Fault("invalid_argument", "pb.bad_body", "no", "expected a map")
        if method == "tool.call":
            return self.tool(args.get("name"), args.get("args") or {})
        self.active = method == "plugin.activate"
        return {}

    @staticmethod
    def tool(name, args):
        if not isinstance(name, str):
            raise Fault("invalid_argument", "pb.bad_body", "no", "expected the name of a tool")
        if name not in TOOLS:
            raise Fault("not_found", "pb.unknown_tool", "no", "no tool %r here; there is %s" % (name, ", ".join(TOOLS)))
        wrong = check_args(name, args)
        if wrong:
            raise Fault("invalid_argument", "pb.bad_args", "no", wrong)
        try:
            text, data = TOOLS[name](**args)
        except Failed as failed:
            return {"content": [{"type": "text", "text": str(failed)}], "is_error": True}
        return {"content": [{"type": "text", "text": text}], "data": data}


def main():
    if os.environ.get("PLUGBAY_PROTOCOL") != "1":
        print("%s is a plugbay plugin and is started by its host. Try: %s" % (PLUGIN["name"], TRY), file=sys.stderr)
        return 2
    # The pipes are ours alone: what is printed lands in stderr, and no child eats a frame. [R-PR-07]
    wire = Wire(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        return Conversation(wire).run()
    except Violation as violation:
        head = {"code": violation.args[0]}
        if head["code"] == "version_unsupported":
            head["supported"] = [1]
        wire.send(CLOSE, 0, head)
        return 1
    except BrokenPipeError:
        os._exit(0)  # nobody reads any more, so there is nothing left to flush


if __name__ == "__main__":
    sys.exit(main())

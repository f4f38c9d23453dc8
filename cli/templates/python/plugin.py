#!/usr/bin/env python3
"""A complete plugbay plugin: protocol 1, level L0, nothing but Python 3.8."""
import io, os, struct, sys, traceback

# The tools: what to run, what to tell the model, which arguments of which JSON type.
TOOLS = {"greet": (lambda who: "hello, " + who, "Greets somebody by name.", {"who": "string"}),
         "add": (lambda a, b: str(a + b), "Adds two numbers.", {"a": "number", "b": "number"})}
TYPES = {"string": (str,), "number": (int, float)}

HELLO, CLOSE, PING, PONG, CALL, ITEM, END, CANCEL, CREDIT, NOTE = KNOWN = 1, 2, 3, 4, 16, 17, 18, 19, 20, 144
LIMITS, FLOORS = {"frame": 1 << 20, "window": 1 << 18, "calls": 1}, {"frame": 1 << 16, "window": 1 << 14, "calls": 1}
HEADS = {  # what each head holds: a type, or the bits of an integer; "?" is optional
    HELLO: {"versions?": list, "features?": list, "limits": {"frame": 32, "window": 32, "calls": 16},
            "host?": {"name?": str, "version?": str}},
    CLOSE: {"code": str}, CANCEL: {"reason?": str}, CREDIT: {"n": 53},
    CALL: {"method": str, "deadline?": 53, "idle?": 53, "in?": bool, "parent?": 32, "scopes?": list, "key?": str,
           "attempt?": 8},
    END: {"err?": {"code": str, "reason?": str, "retry?": str, "after?": 53}}, NOTE: {"topic": str}}
BODIES = {  # the same for the bodies that we take
    "plugin.activate": {"grant?": list, "secrets?": dict}, "plugin.deactivate": {"if_idle?": bool},
    "tool.call": {"name": str}}
class Violation(Exception): """The host broke a rule: (CLOSE code). We say so and exit."""
class Fault(Exception): """A call failed: (code, reason, retry, message). We go on."""

# --- MessagePack
def marker(n, fixed, room, codes):  # the shortest marker that holds n; codes: width -> marker
    if 0 <= n < room: return bytes([fixed | n])
    width = next(w for w in codes if n < 256**w)
    return bytes([codes[width]]) + n.to_bytes(width, "big")
def pack(v):
    if v is None or v is True or v is False: return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[v]
    if isinstance(v, float): return struct.pack(">Bd", 0xCB, v)
    if isinstance(v, int) and v < 0: return struct.pack(">Bq", 0xD3, v)
    if isinstance(v, int): return marker(v, 0, 128, {1: 0xCC, 2: 0xCD, 4: 0xCE, 8: 0xCF})
    if isinstance(v, str): return marker(len(v.encode()), 0xA0, 32, {1: 0xD9, 2: 0xDA, 4: 0xDB}) + v.encode()
    if isinstance(v, list): return marker(len(v), 0x90, 16, {2: 0xDC, 4: 0xDD}) + b"".join(map(pack, v))
    return marker(len(v), 0x80, 16, {2: 0xDE, 4: 0xDF}) + b"".join(pack(k) + pack(v[k]) for k in v)
SIZED = {0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4), 0xD9: ("str", 1), 0xDA: ("str", 2), 0xDB: ("str", 4),
         0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4)}
def bad(why): raise ValueError(why)
def unpack(data, is_head):  # exactly one value, or ValueError
    data, depth_max, int_max = io.BytesIO(data), 8 if is_head else 128, 2**53 - 1 if is_head else 2**64
    def take(n):
        got = data.read(n)
        return got if len(got) == n else bad("it ends too early")
    def value(depth):
        m = take(1)[0]
        if m < 0x80 or m >= 0xE0: return m if m < 0x80 else m - 256
        if m in (0xC0, 0xC2, 0xC3): return {0xC0: None, 0xC2: False, 0xC3: True}[m]
        if 0xCA <= m <= 0xD3:
            form = ">" + "fdBHIQbhiq"[m - 0xCA]
            n = struct.unpack(form, take(struct.calcsize(form)))[0]
            return n if m < 0xCC or n <= int_max else bad("an integer is too large")
        if m < 0xC0: kind, n = ("map", m & 15) if m < 0x90 else ("array", m & 15) if m < 0xA0 else ("str", m & 31)
        elif m in SIZED: kind, n = SIZED[m][0], int.from_bytes(take(SIZED[m][1]), "big")
        else: bad("an extension type")
        if kind in ("str", "bin"): return take(n).decode() if kind == "str" else take(n)
        if depth > depth_max: bad("nested too deeply")
        if kind == "array": return [value(depth + 1) for _ in range(n)]
        table = {}
        for _ in range(n):
            key = value(depth + 1)
            if not isinstance(key, str) or is_head and key in table: bad("a key is no string, or stands twice")
            table[key] = value(depth + 1)
        return table
    result = value(1)
    return result if not data.read(1) else bad("bytes follow the value")

# --- Frames
def stop(code): raise Violation(code)
def frame(kind, id, head, body=b"", limit=1 << 16):
    head = pack(head)
    gap = -(12 + len(head)) % 16 if body else 0  # a body starts at a multiple of 16
    if 12 + len(head) + gap + len(body) > limit: raise Fault("resource_exhausted", "pb.frame_limit", "no", "too large")
    return struct.pack(">BBHII", 0xC1, kind, len(head), id, len(body)) + head + bytes(gap) + body
def send(frame):
    wire_out.write(frame)
    wire_out.flush()
def read(n):
    data = wire_in.read(n)
    return data if len(data) == n else stop("protocol_error")  # the stream ended inside a frame
def fits(value, want):
    if isinstance(want, int): return type(value) is int and 0 <= value < 1 << want
    if isinstance(want, type): return type(value) is want
    return type(value) is dict and all(  # nil and absent are the same
        fits(value.get(name.rstrip("?")), w) or name[-1] == "?" and value.get(name[:-1]) is None
        for name, w in want.items())
def receive(greeted):  # the next frame as kind, id, head, body; None at the end of the stream
    while True:
        magic = wire_in.read(1)
        if magic != b"\xc1": return stop("protocol_error") if magic else None
        kind, head_len, id, body_len = struct.unpack(">BHII", read(11))
        gap = -(12 + head_len) % 16 if body_len else 0
        if 12 + head_len + gap + body_len > (1 << 20 if greeted or kind == HELLO else 1 << 16): stop("frame_too_large")
        if kind < 0x80 and kind not in KNOWN: stop("unsupported_frame")
        if head_len == 0: stop("protocol_error")
        head, gap, body = read(head_len), read(gap), read(body_len)
        if any(gap): stop("protocol_error")
        if kind not in KNOWN: continue  # from 0x80 on we may skip what we do not know
        try: head = unpack(head, True)
        except ValueError: stop("protocol_error")
        if not fits(head, HEADS.get(kind, {})): stop("protocol_error")
        if kind <= PONG and id or kind == PING and len(body) > 64: stop("protocol_error")
        return kind, id, head, body

# --- The conversation
def hello(head):
    if not any(type(v) is int and v == 1 for v in head.get("versions") or []): stop("version_unsupported")
    if any(head["limits"][name] < floor for name, floor in FLOORS.items()): stop("protocol_error")
    provides = [{"kind": "tool", "name": name, "description": text, "effect": "read", "idempotent": True,
                 "input_schema": {"type": "object", "required": list(types), "additionalProperties": False,
                                  "properties": {arg: {"type": t} for arg, t in types.items()}}}
                for name, (_, text, types) in TOOLS.items()]
    us = {"version": 1, "features": [], "limits": LIMITS, "plugin": {"name": "example.plugin-name", "version": "1.0.0"}}
    send(frame(HELLO, 0, us, pack({"provides": provides, "wants": []})))
    return head["limits"]["frame"]
def call(active, method, body):  # -> whether we are active from now on, and the result
    activate, deactivate = method == "plugin.activate", method == "plugin.deactivate"
    if not active and not activate: raise Fault("failed_precondition", "pb.inactive", "safe", "not active")
    if active and activate: raise Fault("failed_precondition", "pb.already_active", "no", "active already")
    if method not in BODIES:
        raise Fault("unimplemented", "pb.unknown_method", "no", "no such method")
    try: args = unpack(body, False) if body else {}
    except ValueError as e: raise Fault("invalid_argument", "pb.bad_body", "no", str(e))
    if not fits(args, BODIES[method]): raise Fault("invalid_argument", "pb.bad_body", "no", f"expected {BODIES[method]}")
    return (activate, {}) if activate or deactivate else (True, tool(args["name"], args.get("args")))
def tool(name, args):
    if name not in TOOLS: raise Fault("not_found", "pb.unknown_tool", "no", "no such tool")
    (run, _, types), args = TOOLS[name], {} if args is None else args
    fine = isinstance(args, dict) and set(args) == set(types) and all(type(args[a]) in TYPES[t] for a, t in types.items())
    if not fine: raise Fault("invalid_argument", "pb.bad_args", "no", f"expected {types}")
    return {"content": [{"type": "text", "text": run(**args)}]}
def serve():  # -> exit code
    limit, active, highest = None, False, 0
    for kind, id, head, body in iter(lambda: receive(limit), None):
        if kind == CLOSE: return 0 if head["code"] == "ok" else 1
        if (kind == HELLO) != (limit is None): stop("bad_state")
        if kind in (CALL, ITEM, END, CANCEL, CREDIT) and id == 0: stop("bad_id")
        if kind in (ITEM, CREDIT) or kind == CANCEL and id % 2 == 0: stop("bad_state")
        if kind in (CALL, END) and (id % 2 == 0 or (id <= highest) == (kind == CALL)): stop("bad_id")
        if kind == CALL and head.get("in"): stop("bad_state")
        if kind == HELLO: limit = hello(head)
        if kind == PING: send(frame(PONG, 0, {}, body))
        if kind != CALL: continue  # a late CANCEL or END, a PONG, a NOTE: nothing to do
        highest = id
        try:
            active, result = call(active, head["method"], body)
            answer = frame(END, id, {}, pack(result), limit)
        except Exception as e:
            if not isinstance(e, Fault): traceback.print_exc()
            code, reason, retry, text = e.args if isinstance(e, Fault) else ("internal", None, "no", "the tool failed")
            answer = frame(END, id, {"err": {"code": code, "reason": reason, "retry": retry}}, pack({"msg": text}))
        send(answer)
    return 0

if os.environ.get("PLUGBAY_PROTOCOL") != "1":
    print("This is a plugin. Try: plugbay call --plugin 'python3 plugin-name.py' greet who=Ada", file=sys.stderr)
    sys.exit(2)
wire_in, wire_out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # from here on print() lands in the log, not between frames
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # and no child can eat frames
try:
    try: code = serve()
    except Violation as violation:
        code, why = 1, violation.args[0]
        send(frame(CLOSE, 0, {"code": why, "supported": [1] if why == "version_unsupported" else None}))
except BrokenPipeError: code = 0  # the host has gone
sys.stdout.flush(), sys.stderr.flush()
os._exit(code)  # sys.exit would try to flush into the broken pipe again

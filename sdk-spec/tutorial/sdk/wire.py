"""Step 0: bytes. MessagePack, and frames cut from a stream. Nothing here knows what a call is."""
import struct

HELLO, CLOSE, PING, PONG, CALL, ITEM, END, CANCEL, CREDIT, NOTE = KNOWN = 1, 2, 3, 4, 16, 17, 18, 19, 20, 144
FRAME_MAX, BEFORE_HELLO, INTEGER_MAX = 1 << 20, 1 << 16, 2**53 - 1


class Violation(Exception):
    """The host broke a rule: the code of our CLOSE."""


class Fault(Exception):
    """A call failed: code, reason, retry, and what the body says."""

    def __init__(self, code, reason=None, retry="no", body=None, after=None):
        super().__init__(code)
        self.err = {"code": code, "reason": reason, "retry": retry, "after": after}
        self.body = body


# --- MessagePack: write


def marker(n, fixed, room, codes):
    """The shortest marker that holds n; codes: bytes of length -> marker."""
    if n < room:
        return bytes([fixed | n])
    width = next(width for width in codes if n < 256**width)
    return bytes([codes[width]]) + n.to_bytes(width, "big")


def pack(v):
    if v is None or v is True or v is False:
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[v]
    if isinstance(v, float):
        return struct.pack(">Bd", 0xCB, v)
    if isinstance(v, int) and v < 0:
        if v >= -32:
            return struct.pack(">b", v)
        forms = zip((0xD0, 0xD1, 0xD2, 0xD3), "bhiq")
        code, form = next(it for it in forms if -(256**struct.calcsize(it[1])) // 2 <= v)
        return struct.pack(">B" + form, code, v)
    if isinstance(v, int):
        return marker(v, 0, 128, {1: 0xCC, 2: 0xCD, 4: 0xCE, 8: 0xCF})
    if isinstance(v, str):
        data = v.encode()
        return marker(len(data), 0xA0, 32, {1: 0xD9, 2: 0xDA, 4: 0xDB}) + data
    if isinstance(v, bytes):
        return marker(len(v), 0, 0, {1: 0xC4, 2: 0xC5, 4: 0xC6}) + v
    if isinstance(v, list):
        return marker(len(v), 0x90, 16, {2: 0xDC, 4: 0xDD}) + b"".join(map(pack, v))
    return marker(len(v), 0x80, 16, {2: 0xDE, 4: 0xDF}) + b"".join(pack(k) + pack(v[k]) for k in v)


# --- MessagePack: read

SIZED = {0xC4: (bytes, 1), 0xC5: (bytes, 2), 0xC6: (bytes, 4), 0xD9: (str, 1), 0xDA: (str, 2), 0xDB: (str, 4),
         0xDC: (list, 2), 0xDD: (list, 4), 0xDE: (dict, 2), 0xDF: (dict, 4)}


def unpack(data, is_head=False):
    """Exactly one value, or ValueError. Strict in heads; a body may repeat a key, and the last counts."""
    deepest, at = (8 if is_head else 128), 0

    def take(n):
        nonlocal at
        if len(data) - at < n:
            raise ValueError("it ends too early")
        at += n
        return data[at - n:at]

    def value(depth):
        m = take(1)[0]
        if m < 0x80 or m >= 0xE0:
            return m if m < 0x80 else m - 256
        if m in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[m]
        if 0xCA <= m <= 0xD3:
            form = ">" + "fdBHIQbhiq"[m - 0xCA]
            n = struct.unpack(form, take(struct.calcsize(form)))[0]
            if is_head and m >= 0xCC and n > INTEGER_MAX:
                raise ValueError("an integer is too large")
            return n
        if m < 0xC0:
            kind, n = (dict, m & 15) if m < 0x90 else (list, m & 15) if m < 0xA0 else (str, m & 31)
        elif m in SIZED:
            kind, n = SIZED[m][0], int.from_bytes(take(SIZED[m][1]), "big")
        else:
            raise ValueError("an extension type")
        if kind in (str, bytes):
            return take(n).decode() if kind is str else bytes(take(n))
        if depth > deepest:
            raise ValueError("nested too deeply")
        if kind is list:
            return [value(depth + 1) for _ in range(n)]
        table = {}
        for _ in range(n):
            key = value(depth + 1)
            if not isinstance(key, str) or is_head and key in table:
                raise ValueError("a key is no string, or stands twice")
            table[key] = value(depth + 1)
        return table

    result = value(1)
    if at != len(data):
        raise ValueError("bytes follow the value")
    return result


def fits(value, want):
    """A type, the bits of an integer, or a map of these; a name that ends with ? is optional, nil is absent."""
    if want is object:
        return True
    if isinstance(want, list):
        return type(value) is list and all(fits(item, want[0]) for item in value)
    if type(want) is int:
        return type(value) is int and 0 <= value < 1 << want
    if isinstance(want, type):
        return type(value) is want
    return type(value) is dict and all(
        name.endswith("?") if value.get(name.rstrip("?")) is None else fits(value[name.rstrip("?")], w)
        for name, w in want.items())


# --- Frames

WHO = {"name?": str, "version?": str, "sdk?": str}
HEADS = {
    HELLO: {"versions?": list, "features?": list, "limits": {"frame": 32, "window": 32, "calls": 16}, "host?": WHO},
    CLOSE: {"code": str, "supported?": list}, CANCEL: {"reason?": str}, CREDIT: {"n": 53}, NOTE: {"topic": str},
    CALL: {"method": str, "deadline?": 53, "idle?": 53, "in?": bool, "parent?": 32, "scopes?": list, "key?": str,
           "attempt?": 8},
    END: {"err?": {"code": str, "reason?": str, "retry?": str, "after?": 53}}}


def body_at(head_len, body_len):
    return 12 + head_len + (-(12 + head_len) % 16 if body_len else 0)


def frame(kind, id, head, body=b""):
    head = pack({name: value for name, value in head.items() if value is not None})
    gap = bytes(body_at(len(head), len(body)) - 12 - len(head))
    return struct.pack(">BBHII", 0xC1, kind, len(head), id, len(body)) + head + gap + body


def cut(buffer, greeted):
    """The first frame of a buffer as (kind, id, head, body, size), with kind None if it is to be skipped; None if it
    is not there whole. What is wrong with it is told in the order of R-FR-15."""
    if buffer and buffer[0] != 0xC1:
        raise Violation("protocol_error")
    if len(buffer) < 12:
        return None
    kind, head_len, id, body_len = struct.unpack_from(">xBHII", buffer)
    at = body_at(head_len, body_len)
    if at + body_len > (FRAME_MAX if greeted or kind == HELLO else BEFORE_HELLO):
        raise Violation("frame_too_large")
    if kind not in KNOWN and kind < 0x80:
        raise Violation("unsupported_frame")
    if head_len == 0:
        raise Violation("protocol_error")
    if len(buffer) < at + body_len:
        return None
    head, body = bytes(buffer[12:12 + head_len]), bytes(buffer[at:at + body_len])
    if any(buffer[12 + head_len:at]):
        raise Violation("protocol_error")
    if kind not in KNOWN:
        return None, id, {}, body, at + body_len
    if kind <= PONG and id:
        raise Violation("protocol_error")
    try:
        head = unpack(head, is_head=True)
    except ValueError:
        raise Violation("protocol_error") from None
    if not fits(head, HEADS.get(kind, {})) or kind == PING and body_len > 64:
        raise Violation("protocol_error")
    return kind, id, {name: value for name, value in head.items() if value is not None}, body, at + body_len

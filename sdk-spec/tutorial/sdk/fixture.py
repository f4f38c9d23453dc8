"""What the steps are tried with: the contract tck (contracts/tck.md), written against the SDK that they build."""
import hashlib, os, re, signal, subprocess, sys, threading, time

from wire import Fault, fits, pack, unpack

ENTRIES = [("echo", ()), ("sleep", ()), ("stubborn", ()), ("spin", ()), ("fail", ()), ("note", ()), ("stray", ()),
           ("state", ()), ("emit", ("stream",)), ("reverse", ("reverse",)), ("sink", ("stream.in",)),
           ("pipe", ("stream.in", "stream"))]
WANTS = ["host.tck.echo", "host.tck.wait", "host.tck.deny", "host.tck.named[a_*]", "host.background"]
CODES = ("cancelled deadline_exceeded invalid_argument not_found conflict permission_denied failed_precondition "
         "resource_exhausted unavailable unimplemented internal unknown").split()
MS = 53
FORMS = {"echo": object, "sleep": {"ms": MS}, "stubborn": {"ms": MS}, "spin": {"ms": MS}, "state": {}, "pipe": {},
         "fail": {"code?": str, "reason?": str, "retry?": str, "after?": MS, "msg?": str, "throw?": bool},
         "note": {"topic": str, "count?": 32, "lvl?": str, "event?": str, "reason?": str, "msg?": str},
         "stray": {"text": str, "via": str, "bytes?": 32, "stay?": bool},
         "emit": {"n?": 32, "size?": 32, "gap_ms?": MS, "fail_at?": 32},
         "reverse": {"method": str, "n?": 32, "parallel?": 32, "detach?": bool, "deadline?": MS, "idle?": MS},
         "sink": {"hold_ms?": MS, "gap_ms?": MS, "stop_at?": 32}}
CONFIG = {"slow_ms?": MS, "fail?": str, "need?": [str], "provides?": [str]}


def bad(why):
    return Fault("invalid_argument", "pb.bad_body", body={"msg": why})


def given(args, *names):
    return {name: args[name] for name in names if args.get(name) is not None}


class Fixture:
    name = "tutorial.fixture"

    def __init__(self):
        self.activations = self.calls_started = self.background = 0
        self.grant, self.secrets, self.config, self.last = [], [], None, {}
        self.children, self.names, self.hidden, self.lock = [], [], set(), threading.RLock()

    def manifest(self, used):
        self.names = [name for name, needs in ENTRIES if all(need in used for need in needs)]
        return self.entries(), WANTS if "reverse" in used else []

    def entries(self):
        return [{"kind": "tck", "name": name} for name in self.names if name not in self.hidden]

    def method(self, method):
        name = method[4:] if method.startswith("tck.") else ""
        if name not in self.names or name in self.hidden:
            return None, None
        return FORMS[name], lambda call: self.begin(call, name)

    def begin(self, call, name):
        args = call.args
        if name == "fail":
            self.judge_fail(args)
        elif name == "note" and args["topic"] not in ("progress", "log", "retire"):
            raise bad("an unknown topic")
        elif name == "stray" and args["via"] not in (("child",) if args.get("stay") else ("print", "child", "stderr")):
            raise bad("an unknown via, or stay with another than child")
        elif name == "sink" and args.get("file") is not None:
            raise bad("blob.file is not in use")
        if name != "state":
            with self.lock:
                self.calls_started += not (name == "fail" and args.get("retry") == "safe")
                self.last = given(call.head, "method", "deadline", "idle", "key", "attempt", "scopes", "trace")
        return getattr(self, name)(call, args)

    # --- The lifecycle

    def activate(self, call):
        body = call.args
        config = body.get("config")
        if config is not None and not fits(config, CONFIG):
            raise Fault("invalid_argument", "tck.bad_config")
        asked = config or {}
        call.wait((asked.get("slow_ms") or 0) / 1000)
        if asked.get("fail") is not None:
            raise Fault("invalid_argument", "tck." + asked["fail"])
        grant = body.get("grant") or []
        missing = [scope for scope in asked.get("need") or [] if scope not in grant]
        if missing:
            raise Fault("failed_precondition", "pb.missing_scope", body={"data": {"scopes": missing}})
        self.grant, self.secrets, self.config = grant, sorted(body.get("secrets") or {}), config
        self.activations += 1
        globs = asked.get("provides")
        shown = [name for name in self.names if globs is None or any(re.fullmatch(like(glob), name) for glob in globs)]
        self.hidden = set(self.names) - set(shown)
        return {} if globs is None else {"provides": self.entries()}

    def dispose(self):
        with self.lock:
            for child in self.children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            self.children = []

    # --- L0

    def echo(self, call, args):
        return call.body

    def sleep(self, call, args):
        call.wait(args["ms"] / 1000)

    def stubborn(self, call, args):
        time.sleep(args["ms"] / 1000)

    def spin(self, call, args):
        end = time.monotonic() + args["ms"] / 1000
        while time.monotonic() < end:
            pass

    def judge_fail(self, args):
        if args.get("code", "internal") not in CODES + [None]:
            raise bad("none of the twelve codes")
        if not re.fullmatch(r"[a-z0-9]+(\.[a-z0-9_]+)+", args.get("reason") or "a.b"):
            raise bad("no reason")

    def fail(self, call, args):
        if args.get("throw"):
            raise RuntimeError("a bug")
        raise Fault(args.get("code") or "internal", args.get("reason"), args.get("retry"), given(args, "msg", "data"),
                    args.get("after"))

    def note(self, call, args):
        count, body = args.get("count", 1) or 0, given(args, "msg")
        for k in range(1, count + 1):
            if args["topic"] == "log":
                call.note("log", body, **given(args, "lvl", "event"))
            elif args["topic"] == "retire":
                call.plugin.note(None, "retire", None, given(args, "reason"))
            elif k in (1, count):  # at most ten a second, so we drop those between
                call.note("progress", body, n=k, total=count)

    def stray(self, call, args):
        line = (args["text"] + "\n").encode()
        lines = max(1, -(-(args.get("bytes") or 1) // len(line)))
        if args["via"] == "print":
            for _ in range(lines):
                print(args["text"])
            sys.stdout.flush()
        elif args["via"] == "stderr":
            write(2, line * lines)
        else:
            return self.stray_child(line * lines, bool(args.get("stay")))
        return {}

    def stray_child(self, data, stay):
        code = "import os, sys, time\nwhile sys.stdin.buffer.peek(1): os.write(1, sys.stdin.buffer.read1())\n"
        code += "os.close(0)\nwhile True: time.sleep(60)" if stay else ""
        with self.lock:
            child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
            if stay:
                self.children.append(child.pid)
        child.stdin.write(data)
        child.stdin.close()
        if not stay:
            child.wait()
        child.returncode = 0  # whoever disposes waits for it
        return {"pid": child.pid} if stay else {}

    def state(self, call, args):
        with self.lock:
            return {"activations": self.activations, "calls_started": self.calls_started,
                    "open_calls": call.plugin.running(), "background": self.background, "children": len(self.children),
                    "scopes": self.grant, "secrets": self.secrets,
                    "config_sha256": hashlib.sha256(pack(self.config)).hexdigest(), "last": self.last}

    # --- L2

    def emit(self, call, args):
        n, size, sent = args.get("n"), args.get("size"), 0
        while sent != n:
            if sent == args.get("fail_at"):
                raise Fault("unavailable", "tck.fail_at")
            call.wait((args.get("gap_ms") or 0) / 1000)
            call.item(pack(None if size is None else {"i": sent, "d": bytes([sent % 256]) * size}))
            sent += 1
        return {"n": sent}

    # --- L3

    def reverse(self, call, args):
        count, parallel = args.get("n"), max(1, args.get("parallel") or 1)
        results, turn = [None] * (1 if count is None else count), iter(range(1 if count is None else count))
        body = pack(args["args"]) if args.get("args") is not None else b""
        call.may(args["method"], detach=bool(args.get("detach")))

        def work(parent):
            for i in iter(lambda: next(turn, None), None):
                try:
                    answer = call.call(args["method"], body, args.get("deadline"), args.get("idle"), parent)
                    results[i] = {"ok": unpack(answer) if answer else None}
                except Fault as fault:
                    if parent and call.cancelled:
                        return
                    err = {name: value for name, value in fault.err.items() if value is not None}
                    results[i] = dict({"err": err}, **given(fault.body or {}, "msg"))

        def detached():
            try:
                work(None)
            finally:
                with call.plugin.lock:
                    self.background -= 1
                    call.plugin.changed.notify_all()

        if args.get("detach"):
            self.background += 1
            threading.Thread(target=detached, daemon=True).start()
            return {"results": []}
        helpers = [threading.Thread(target=work, args=(call,), daemon=True) for _ in range(min(parallel, len(results)))]
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join()
        call.wait(0)  # cancelled?
        return {"results": results}

    # --- L4

    def sink(self, call, args):
        n, size, digest = 0, 0, hashlib.sha256()
        call.wait((args.get("hold_ms") or 0) / 1000)
        while n != args.get("stop_at"):
            call.wait((args.get("gap_ms") or 0) / 1000)
            body = call.next_item()
            if body is None:
                break
            try:
                data = unpack(body)
            except ValueError:
                data = None
            if type(data) is not bytes:
                raise bad("expected binary")
            call.pay()
            n, size = n + 1, size + len(data)
            digest.update(data)
        return {"n": n, "bytes": size, "sha256": digest.hexdigest()}

    def pipe(self, call, args):
        n = 0
        while (body := call.next_item()) is not None:
            call.item(body)
            call.pay()
            n += 1
        return {"n": n}


def like(glob):
    return ".*".join(map(re.escape, glob.split("*")))


def write(fd, data):
    while data:
        data = data[os.write(fd, data):]

#!/usr/bin/env python3
"""Step 1, level L0: a plugin that does one thing at a time. The gate, calls to END, PING, CLOSE."""
import os, signal, sys, threading, time, traceback

from wire import *

READY, ACTIVATING, ACTIVE, DRAINING = "ready", "activating", "active", "draining"
LIFECYCLE = {"plugin.activate": {"grant?": [str], "secrets?": dict}, "plugin.deactivate": {"if_idle?": bool}}


class Call:
    """What a function is given. Level by level it can do more."""

    def __init__(self, plugin, id, head, body):
        self.plugin, self.id, self.head, self.body, self.open = plugin, id, head, body, True

    @property
    def args(self):
        return unpack(self.body) if self.body else {}

    def wait(self, seconds):
        time.sleep(seconds)

    def note(self, topic, body=None, **head):
        self.plugin.note(self, topic, body, head)


class Plugin:
    features, calls = [], 1

    def __init__(self, service):
        """service: name, provides, wants, methods {name: (form of the body, function)}, activate(call), dispose()."""
        self.service, self.stage, self.host, self.used = service, READY, None, []
        self.highest, self.open = 0, {}
        self.lock = threading.RLock()  # one lock for all; a plugin without threads could do without

    # --- Bytes out

    def write(self, data):
        while data:
            data = data[os.write(self.out, data):]

    def send(self, kind, id, head, body=b"", weight=None):
        self.write(frame(kind, id, head, body))

    def note(self, call, topic, body, head):
        if call is None or call.open:
            self.send(NOTE, call.id if call else 0, dict({"topic": topic}, **head), pack(body) if body else b"")

    # --- Bytes in

    def serve(self):
        """Until the end; the exit code."""
        buffer = bytearray()
        while True:
            chunk = os.read(self.inp, 1 << 16)
            if not chunk:
                if buffer:
                    raise Violation("protocol_error")
                return 0
            buffer += chunk
            while (found := cut(buffer, self.host)) is not None:
                kind, id, head, body, size = found
                del buffer[:size]
                if kind == CLOSE:
                    return 0 if head["code"] == "ok" else 1
                if kind is not None:
                    self.on_frame(kind, id, head, body, size)

    def on_frame(self, kind, id, head, body, size):
        if (kind == HELLO) == (self.host is not None):
            raise Violation("bad_state")
        if kind == HELLO:
            self.on_hello(head)
        elif kind == PING:
            self.send(PONG, 0, {}, body, "owed")
        elif kind not in (PONG, NOTE):
            if id == 0:
                raise Violation("bad_id")
            with self.lock:
                {CALL: self.on_call, ITEM: self.on_item, END: self.on_end, CANCEL: self.on_cancel,
                 CREDIT: self.on_credit}[kind](id, head, body, size)

    def on_hello(self, head):
        if not any(type(v) is int and v == 1 for v in head.get("versions", [])):
            raise Violation("version_unsupported")
        floors = {"frame": 1 << 16, "window": 1 << 14, "calls": 1}
        if any(head["limits"][name] < floor for name, floor in floors.items()):
            raise Violation("protocol_error")
        self.host = head["limits"]
        self.used = [it for it in self.features if it in head.get("features", [])]
        self.limits = {"frame": FRAME_MAX, "window": 1 << 16, "calls": self.calls if "async" in self.used else 1}
        provides, wants = self.service.manifest(self.used)
        us = {"version": 1, "features": self.used, "limits": self.limits,
              "plugin": {"name": self.service.name, "version": "1.0.0"}}
        self.send(HELLO, 0, us, pack({"provides": provides, "wants": wants}))

    # --- Frames about calls: the table in 3.1, as far as a plugin without features can see it

    def on_call(self, id, head, body, size):
        if id % 2 == 0 or id <= self.highest:
            raise Violation("bad_id")
        if head.get("in") and "stream.in" not in self.used:
            raise Violation("bad_state")
        self.highest = id
        try:
            function = self.judge(head["method"], body)
        except Fault as fault:
            self.send(END, id, {"err": clean(fault.err)}, pack(fault.body) if fault.body else b"", "owed")
            return
        self.start(self.new_call(id, head, body), function)

    def on_end(self, id, head, body, size):
        if id % 2 == 0 or id > self.highest:
            raise Violation("bad_id")
        if id in self.open:
            raise Violation("bad_state")

    def on_cancel(self, id, head, body, size):
        if id % 2 == 0:
            raise Violation("bad_state")

    def on_item(self, id, head, body, size):
        raise Violation("bad_state")

    def on_credit(self, id, head, body, size):
        raise Violation("bad_state")

    # --- The gate: state, limit, method, body, in this order

    def judge(self, method, body):
        activate, deactivate = method == "plugin.activate", method == "plugin.deactivate"
        if self.stage == DRAINING:
            raise Fault("unavailable", "pb.draining", "safe")
        if self.stage == ACTIVE and activate:
            raise Fault("failed_precondition", "pb.already_active")
        if self.stage == ACTIVATING or self.stage == READY and not activate:
            raise Fault("failed_precondition", "pb.inactive", "safe")
        if not method.startswith("plugin.") and self.busy():
            raise Fault("resource_exhausted", "pb.too_many_calls", "safe")
        form, function = (LIFECYCLE[method], None) if method in LIFECYCLE else self.service.method(method)
        if function is None and method not in LIFECYCLE:
            raise Fault("unimplemented", "pb.unknown_method")
        try:
            args = unpack(body) if body else {}
        except ValueError as wrong:
            raise Fault("invalid_argument", "pb.bad_body", body={"msg": str(wrong)}) from None
        if not fits(args, form) or activate and not all(type(it) is str for it in (args.get("secrets") or {}).values()):
            raise Fault("invalid_argument", "pb.bad_body", body={"msg": "expected %s" % (form,)})
        if deactivate and args.get("if_idle") and self.working():
            raise Fault("failed_precondition", "pb.busy", "safe")
        if activate or deactivate:
            self.stage = ACTIVATING if activate else DRAINING
            return self.service.activate if activate else self.deactivate
        return function

    def running(self):
        """How many calls run, lifecycle steps left out."""
        return sum(call.head["method"] not in LIFECYCLE for call in self.open.values())

    def busy(self):
        return False  # while one call runs nobody reads the next

    def working(self):
        return False

    def deactivate(self, call):
        self.service.dispose()

    # --- Running

    def new_call(self, id, head, body):
        call = self.open[id] = Call(self, id, head, body)
        return call

    def start(self, call, function):
        self.run(call, function)

    def run(self, call, function):
        try:
            result = function(call)
            body = result if isinstance(result, bytes) else pack({} if result is None else result)
            self.end(call, None, body)
        except Fault as fault:
            self.end(call, fault.err, pack(fault.body) if fault.body else b"")
        except BrokenPipeError:
            raise
        except BaseException:  # a bug of the function, not of the connection
            traceback.print_exc()
            self.end(call, {"code": "internal", "retry": "no"}, b"")

    def end(self, call, err, body):
        """END and the change of state are one step."""
        with self.lock:
            head = {"err": clean(err)} if err else {}
            if len(frame(END, call.id, head, body)) > self.host["frame"]:
                err = {"code": "resource_exhausted", "reason": "pb.frame_limit", "retry": "no"}
                head, body = {"err": err}, b""
            method, ok = call.head["method"], err is None
            if method in LIFECYCLE:
                self.stage = ACTIVE if ok == (method == "plugin.activate") else READY
            call.open = False
            del self.open[call.id]
            self.send(END, call.id, head, body, None if method in LIFECYCLE else "slot")

    # --- The process

    def main(self):
        if os.environ.get("PLUGBAY_PROTOCOL") != "1":
            print("This is a plugin of the tutorial. Try: plugbay-tck sdk -- python3", sys.argv[0], file=sys.stderr)
            sys.exit(2)
        self.inp, self.out = os.dup(0), os.dup(1)  # descriptors that dup makes are not inherited
        os.dup2(2, 1), os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGTERM, lambda *_: self.leave(0))
        try:
            self.leave(self.serve())
        except Violation as violation:
            code = violation.args[0]
            self.close({"code": code, "supported": [1] if code == "version_unsupported" else None})
        except BrokenPipeError:
            self.leave(0)

    def close(self, head):
        try:
            self.send(CLOSE, 0, head)
        except BrokenPipeError:
            pass
        self.leave(1)

    def leave(self, code):
        self.service.dispose()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def clean(err):
    return {name: value for name, value in err.items() if value is not None}


if __name__ == "__main__":
    from fixture import Fixture
    Plugin(Fixture()).main()

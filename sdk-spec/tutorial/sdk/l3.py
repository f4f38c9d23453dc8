#!/usr/bin/env python3
"""Step 4, level L3: feature reverse. The plugin calls its host, for a call or in the background."""
import re, time

import l2
from wire import *

TRACE = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
SCOPE = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+)(\[[!-Z\\^-~]{1,128}\])?")


class Reverse:
    """A call of ours."""

    def __init__(self, parent, deadline):
        self.parent, self.deadline = parent, deadline
        self.outcome = None  # END has come: (err, body)
        self.cancelled = False
        self.credit = self.unpaid = 0


class Call(l2.Call):
    def may(self, method, detach=False):
        """Whether authority has a scope for the method at all: the grant, and what the host left of it."""
        grant, left = self.plugin.service.grant, self.head.get("scopes")
        fine = has(grant, method) and (left is None or has(left, method))
        if not (has(grant, method) and "host.background" in grant if detach else fine):
            raise Fault("permission_denied", "pb.scope_denied")

    def call(self, method, body=b"", deadline=None, idle=None, parent=True):
        """Calls the host and waits: the body of its END, or Fault. Without parent it is background work."""
        plugin, parent = self.plugin, self if parent else None
        with plugin.lock:
            self.may(method, detach=parent is None)
            if parent and parent.deadline is not None:
                left = max(0, int((parent.deadline - time.monotonic()) * 1000))
                deadline = left if deadline is None else min(deadline, left)
            until = None if deadline is None else time.monotonic() + deadline / 1000
            ours = Reverse(parent, until)
            wait = parent.wait_for if parent else plugin.wait_for
            wait(lambda: len(plugin.ours) < plugin.host["calls"])
            head = {"method": method, "deadline": deadline, "idle": idle, "parent": parent and self.id}
            trace = self.head.get("trace")
            if parent and type(trace) is dict and type(trace.get("tp")) is str and TRACE.fullmatch(trace["tp"]):
                head["trace"] = trace
            data = frame(CALL, plugin.next_id, head, body)
            if len(data) > plugin.host["frame"]:
                raise Fault("resource_exhausted", "pb.frame_limit")
            id, plugin.next_id = plugin.next_id, plugin.next_id + 2
            plugin.ours[id] = ours
            ours.credit = plugin.limits["window"]
            plugin.send(CALL, id, head, body)
            # Our clock decides about our call; its slot stays taken until END.
            while ours.outcome is None and not (parent and parent.cancelled):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    plugin.give_up(id, "deadline")
                    raise Fault("deadline_exceeded", retry="maybe")
                plugin.changed.wait(left)
            while ours.outcome is None:  # the parent was cancelled, and so was this
                plugin.changed.wait()
            err, body = ours.outcome
            if err is None:
                return body
            fault = Fault(err["code"] if err["code"] in CODES else "unknown", err.get("reason"),
                          err["retry"] if err.get("retry") in ("safe", "maybe") else "no", after=err.get("after"))
            fault.body = unpack(body) if body else None
            raise fault


class Plugin(l2.Plugin):
    features = l2.Plugin.features + ["reverse"]
    call_type = Call

    def __init__(self, service):
        super().__init__(service)
        self.ours, self.next_id = {}, 2

    def wait_for(self, ready):
        while not ready():
            self.changed.wait()

    def give_up(self, id, reason):
        if not self.ours[id].cancelled:
            self.ours[id].cancelled = True
            self.send(CANCEL, id, {"reason": reason})

    # --- What the host says about calls of ours

    def on_end(self, id, head, body, size):
        if id % 2 or "reverse" not in self.used:
            return super().on_end(id, head, body, size)
        if id not in self.ours:
            raise Violation("bad_id" if id >= self.next_id else "bad_state")
        self.ours.pop(id).outcome = head.get("err"), body
        self.changed.notify_all()

    def on_item(self, id, head, body, size):
        if id % 2 or "stream" not in self.used or "reverse" not in self.used:
            return super().on_item(id, head, body, size)
        if id not in self.ours:
            raise Violation("bad_id" if id >= self.next_id else "bad_state")
        ours = self.ours[id]  # nobody here takes items of the host, so they are paid for and dropped
        if ours.credit <= 0:
            raise Violation("flow_error")
        ours.credit, ours.unpaid = ours.credit - size, ours.unpaid + size
        if ours.unpaid >= self.limits["window"] // 4:
            self.send(CREDIT, id, {"n": ours.unpaid})
            ours.credit, ours.unpaid = ours.credit + ours.unpaid, 0

    def on_cancel(self, id, head, body, size):
        super().on_cancel(id, head, body, size)
        for child, ours in self.ours.items():
            if ours.parent and ours.parent.id == id:
                self.give_up(child, "parent")

    # --- A call ends after what it called for, and a deactivation after everything

    def run(self, call, function):
        def whole(call):
            try:
                return function(call)
            finally:
                with self.lock:
                    self.wait_for(lambda: not any(ours.parent is call for ours in self.ours.values()))
        super().run(call, whole)

    def working(self):
        return super().working() or bool(self.ours) or self.service.background > 0


CODES = ("cancelled deadline_exceeded invalid_argument not_found conflict permission_denied failed_precondition "
         "resource_exhausted unavailable unimplemented internal unknown").split()


def has(scopes, method):
    """Whether a scope of the list has this method, for whatever name; the host judges the name."""
    found = (SCOPE.fullmatch(scope) for scope in scopes if type(scope) is str)
    return any(scope and scope[1] == method for scope in found)


if __name__ == "__main__":
    from fixture import Fixture
    Plugin(Fixture()).main()

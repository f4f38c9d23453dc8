#!/usr/bin/env python3
"""Step 5, level L4: feature stream.in. A call can take items; what was taken is paid for."""
import collections

import l3
from wire import *


class Call(l3.Call):
    def __init__(self, plugin, id, head, body):
        super().__init__(plugin, id, head, body)
        self.input = collections.deque()  # (body, size) that nobody has taken
        self.more = head.get("in", False)  # until the caller's END
        self.left, self.unpaid = plugin.limits["window"], 0

    def next_item(self):
        """The next item of the caller, or None at the end of its input."""
        with self.plugin.lock:
            self.wait_for(lambda: self.input or not self.more)
            if not self.input:
                return None
            body, size = self.input.popleft()
            self.unpaid += size
            return body

    def pay(self):
        """Credit for what was taken, gathered to a quarter of the window or until nothing waits."""
        with self.plugin.lock:
            enough = self.unpaid >= self.plugin.limits["window"] // 4 or self.left <= 0 and not self.input
            if self.open and self.more and self.unpaid and enough:
                self.plugin.send(CREDIT, self.id, {"n": self.unpaid})
                self.left, self.unpaid = self.left + self.unpaid, 0


class Plugin(l3.Plugin):
    features = l3.Plugin.features + ["stream.in"]
    call_type = Call

    def on_item(self, id, head, body, size):
        if id % 2 == 0 or "stream.in" not in self.used:
            return super().on_item(id, head, body, size)
        if id > self.highest:
            raise Violation("bad_id")
        call = self.open.get(id)
        if call is None:
            return  # late
        if not call.more:
            raise Violation("bad_state")
        if call.left <= 0:
            raise Violation("flow_error")
        call.left -= size
        call.input.append((body, size))
        self.changed.notify_all()

    def on_end(self, id, head, body, size):
        call = self.open.get(id)
        if id % 2 and call and call.more:
            call.more = False
            self.changed.notify_all()
        else:
            super().on_end(id, head, body, size)

    def on_credit(self, id, head, body, size):
        if id % 2 or "stream.in" not in self.used:
            super().on_credit(id, head, body, size)
        # We send no items into calls of ours, so credit for them means nothing.


if __name__ == "__main__":
    from fixture import Fixture
    Plugin(Fixture()).main()

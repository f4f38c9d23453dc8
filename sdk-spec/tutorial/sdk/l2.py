#!/usr/bin/env python3
"""Step 3, level L2: feature stream. A call can send items, as far as its credit reaches."""
import l1
from wire import *

CREDIT_MAX = 2**31 - 1


class Call(l1.Call):
    def __init__(self, plugin, id, head, body):
        super().__init__(plugin, id, head, body)
        self.credit = plugin.host["window"]

    def item(self, body):
        """Waits for credit. One item may overdraw it, however large it is."""
        with self.plugin.lock:
            self.wait_for(lambda: self.credit > 0)
            self.credit -= len(frame(ITEM, self.id, {}, body))
            self.plugin.send(ITEM, self.id, {}, body)


class Plugin(l1.Plugin):
    features = l1.Plugin.features + ["stream"]
    call_type = Call

    def on_credit(self, id, head, body, size):
        if id % 2 == 0 or "stream" not in self.used:
            super().on_credit(id, head, body, size)
        elif id in self.open:
            call = self.open[id]
            call.credit += head["n"]
            if head["n"] == 0 or call.credit > CREDIT_MAX:
                raise Violation("flow_error")
            self.changed.notify_all()

    def on_item(self, id, head, body, size):
        if id % 2 == 0 and "stream" in self.used:
            raise Violation("bad_id")  # of a call of ours, and we make none
        super().on_item(id, head, body, size)


if __name__ == "__main__":
    from fixture import Fixture
    Plugin(Fixture()).main()

#!/usr/bin/env python3
"""Step 2, level L1: feature async. It reads while calls run, so CANCEL, PING and deadlines mean something.

Three kinds of threads: one reads, one writes, one for each call. All that they share is under one lock."""
import collections, threading, time

import l0
from l0 import LIFECYCLE
from wire import *


class Call(l0.Call):
    def __init__(self, plugin, id, head, body):
        super().__init__(plugin, id, head, body)
        self.cancelled = False
        self.deadline = time.monotonic() + head["deadline"] / 1000 if "deadline" in head else None

    def check(self):
        """Who gives up says so."""
        if self.cancelled:
            raise Fault("cancelled")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise Fault("deadline_exceeded", retry="maybe")

    def wait(self, seconds):
        end = time.monotonic() + seconds
        self.wait_for(lambda: time.monotonic() >= end, end)

    def wait_for(self, ready, end=None):
        """Until it is so; tells of its progress as idle wants, and ends with the call."""
        third = self.head["idle"] / 3000 if self.head.get("idle") else None
        sign = time.monotonic() + third if third else None
        with self.plugin.lock:
            while True:
                self.check()
                if ready():
                    return
                until = min((at for at in (end, sign, self.deadline) if at is not None), default=None)
                self.plugin.changed.wait(None if until is None else max(0, until - time.monotonic()))
                if sign is not None and time.monotonic() >= sign:
                    self.note("progress")
                    sign = time.monotonic() + third


class Plugin(l0.Plugin):
    features, calls = ["async"], 16
    call_type = Call

    def __init__(self, service):
        super().__init__(service)
        self.changed = threading.Condition(self.lock)
        self.queue, self.to_write = collections.deque(), threading.Condition(self.lock)
        self.owed = self.slots = self.waiting = 0
        self.closed = False

    # --- Writing never holds up reading: a queue, and whoever fills it without reading is let go

    def send(self, kind, id, head, body=b"", weight=None):
        with self.lock:
            if self.closed or kind == NOTE and self.waiting > 1 << 20:  # notes may be lost
                return
            data = frame(kind, id, head, body)
            self.queue.append((data, weight))
            self.waiting += len(data)
            self.owed += weight == "owed"
            self.to_write.notify()
            if self.owed > 1024 + 4 * self.calls:
                raise Violation("calm")

    def write_all(self):
        while True:
            with self.lock:
                while not self.queue:
                    self.to_write.wait()
                data, weight = self.queue[0]
                self.slots -= weight == "slot"  # free before the host can know, and so in time
            try:
                self.write(data)
            except BrokenPipeError:
                with self.lock:
                    self.queue.clear()
                self.leave(0)
            with self.lock:
                self.queue.popleft()
                self.waiting -= len(data)
                self.owed -= weight == "owed"
                self.changed.notify_all()

    def serve(self):
        threading.Thread(target=self.write_all, daemon=True).start()
        return super().serve()

    def close(self, head):
        with self.lock:
            self.send(CLOSE, 0, head)
            self.closed = True
        self.leave(1)

    def leave(self, code):
        with self.lock:
            self.closed = True
            end = time.monotonic() + 0.6
            while self.queue and self.changed.wait(max(0, end - time.monotonic())):
                pass
            super().leave(code)

    # --- Calls run beside one another

    def new_call(self, id, head, body):
        call = self.open[id] = self.call_type(self, id, head, body)
        self.slots += head["method"] not in LIFECYCLE
        return call

    def start(self, call, function):
        threading.Thread(target=self.run, args=(call, function), daemon=True).start()

    def busy(self):
        return self.slots >= self.limits["calls"]

    def working(self):
        return self.running() > 0

    def on_cancel(self, id, head, body, size):
        super().on_cancel(id, head, body, size)
        if id in self.open:
            self.open[id].cancelled = True
            self.changed.notify_all()

    def end(self, call, err, body):
        with self.lock:
            super().end(call, err, body)
            self.changed.notify_all()

    def deactivate(self, call):
        with self.lock:
            while self.working():
                self.changed.wait()
        super().deactivate(call)


if __name__ == "__main__":
    from fixture import Fixture
    Plugin(Fixture()).main()

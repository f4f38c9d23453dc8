#!/usr/bin/env python3
"""The reference fixture with other wants and two tools. `ask` works through its host: it calls `host.tool.call` with its
arguments, and returns what came of it. `chat` sends `n` previews before its result. The method `tck.hurry` logs a line
and calls `host.tck.wait` in one breath. ASK_CALLS in the environment is how
many calls it takes at once."""
import os, pathlib, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tck" / "fixtures"))
from reference import Fault, Fixture  # noqa: E402

WANTS = ["host.tool.call", "host.tck.echo", "host.tck.wait", "host.tck.fail", "host.tck.missing", "host.background"]
TOOLS = [
    {"kind": "tool", "name": "ask", "description": "Calls a tool through its host.", "effect": "read",
     "input_schema": {"type": "object", "properties": {"name": {"type": "string"}, "args": {"type": "object"}}}},
    {"kind": "tool", "name": "chat", "description": "Says much before its result.", "effect": "read",
     "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
]


class Agent(Fixture):
    name = "tests.agent"
    limits = dict(Fixture.limits, calls=int(os.environ.get("ASK_CALLS", "16")))

    def __init__(self):
        super().__init__()
        # The fixture looks up all that is provided.
        self.table.update({"tck.ask": self.ask, "tck.chat": self.chat})

    def provides(self):
        return super().provides() + TOOLS

    def wants(self):
        return WANTS

    def methods(self):
        table = {"tck." + each["name"]: self.table["tck." + each["name"]] for each in super().provides()}
        return dict(table, **{"tool.call": self.tool, "tck.hurry": self.hurry})

    def tool(self, call):
        args = call.args({"name": str, "args?": dict})
        return {"ask": self.ask, "chat": self.chat}[args["name"]](call, args.get("args", {}))

    def chat(self, call, args):
        preview = {"content": [{"type": "text", "text": "x" * 4096}]}
        for _ in range(args["n"]):
            call.item(preview)
        return {"content": [{"type": "text", "text": "done"}]}

    def hurry(self, call):
        with self.lock:  # which the writer needs
            self.send_note("log", call, event="agent.hurry")
            reverse = self.start_reverse("host.tck.wait", None, call)
        reverse.wait()

    def ask(self, call, args):
        args = dict({"session": "s", "call": "c"}, **args)
        try:
            answer = call.reverse("host.tool.call", args).value
        except Fault as fault:
            call.check()
            text = "%s %s %s" % (fault.code, fault.reason, fault.retry)
            return {"content": [{"type": "text", "text": text}], "is_error": True}
        return answer["receipt"]


if __name__ == "__main__":
    Agent().run_plugin()

# Runs in the guest as root. A scenario says `== NAME`, and `== NAME: STATUS` when it is over.
# PLUGBAY, TESTS, REPOSITORY and SCENARIOS are set above.
export PATH="$(dirname "$PLUGBAY"):$PATH" NO_COLOR=1 XDG_RUNTIME_DIR=/run

# In a cgroup of its own that it may divide, as the unit file does it.
delegated() { systemd-run --quiet --wait --pipe --setenv=NO_COLOR=1 --property=Delegate=yes "$@"; }
as_user() { delegated --property=User=tester "$@"; }

say() { echo "-- $*"; }

# `again 50 COMMAND`: until it succeeds, 50 times, a tenth of a second apart.
again() {
    tries=$1; shift
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries - 1)); [ $tries -gt 0 ] || { say "never: $*"; return 1; }
        sleep 0.1
    done
}
gone() { ! pgrep -f "$1"; }
other_than() { now=$(systemctl show --value --property=MainPID plugbay); [ "$now" != 0 ] && [ "$now" != "$1" ]; }
is_up() { plugbay ps --config /etc/plugbay/plugbay.toml --json | grep -q '"state": *"active"'; }

# What this machine can do for a service, and that each limit really holds.
limits() { delegated plugbay doctor && delegated plugbay limits test; }
limits_as_user() { as_user plugbay doctor && as_user plugbay limits test; }

# Without a cgroup that it may divide, an ordinary user is told so and how to have one.
no_delegation() {
    systemd-run --quiet --wait --pipe --setenv=NO_COLOR=1 --property=User=tester plugbay doctor | tee /run/said
    grep -q 'Delegate=yes' /run/said
}

# The unit file that plugbay ships, from its start to its end.
unit() {
    mkdir -p /etc/plugbay && cd /etc/plugbay &&
        plugbay new notes --lang python &&
        cat > plugbay.toml <<'TOML' &&
manifest = 1
[plugins.notes]
from = "notes"
[plugins.notes.idle]
start = "at-boot"
[plugins.notes.sandbox]
level = "strict"
[plugins.notes.limits]
memory = "128MiB"
processes = 16
TOML
        plugbay check plugbay.toml &&
        cp "$PLUGBAY" /usr/bin/plugbay &&
        cp "$REPOSITORY/cli/systemd/plugbay.service" /etc/systemd/system/ &&
        systemctl daemon-reload && systemctl start plugbay &&
        systemctl is-active plugbay || return 1
    say "it is up, with its plugin in a cgroup below ours"
    again 300 is_up || { journalctl -u plugbay --no-pager; return 1; }
    plugbay call greet who=systemd --config plugbay.toml || return 1
    plugbay why notes --config plugbay.toml
    find /sys/fs/cgroup/system.slice/plugbay.service -type d
    pgrep -f notes.py || return 1

    say "systemd starts a supervisor again that was killed, and nothing of the old one is left"
    old=$(systemctl show --value --property=MainPID plugbay)
    plugin=$(pgrep -f notes.py | head -1)
    kill -KILL "$old"
    again 100 other_than "$old" && again 300 is_up && ! kill -0 "$plugin" 2>/dev/null || return 1
    plugbay call greet who=again --config plugbay.toml || return 1

    say "stopped, nothing is left"
    systemctl stop plugbay || return 1
    [ "$(systemctl show --value --property=Result plugbay)" = success ] && again 50 gone notes.py &&
        again 50 test ! -d /sys/fs/cgroup/system.slice/plugbay.service
}

# Our own tests, those with these words in their names; they take long, so only when they are
# asked for. On version 2 each of their processes needs a cgroup of its own, and this shell must
# not be in the one that is divided.
# It is a file, because systemd has its own meaning for `$$` on a command line.
cat > /run/tests.sh <<'SH'
own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
mkdir "$own/runner" && echo $$ > "$own/runner/cgroup.procs" &&
    echo '+memory +cpu +pids' > "$own/cgroup.subtree_control" || exit 1
export PLUGBAY_TEST_CGROUPS="$own" PLUGBAY_TEST_PATIENCE=5
exec "$@" --test-threads=1 --show-output --color=never
SH
tests() { who=$1; shift; ( cd /tmp && $who /bin/sh /run/tests.sh "$TESTS" "$@" ); }
# With the tests elsewhere that try some of them.
CASES='cases:: kills:: hosts:: isolation::there_is isolation::nothing_is isolation::what_a isolation::interpreters isolation_kill::who_kills'
cases() { tests delegated $CASES --skip unprivileged; }
cases_as_user() { tests as_user $CASES --skip unprivileged; }
WALLS='isolation state:: digest ladder:: deaths::'
isolation() { tests delegated $WALLS; }
isolation_as_user() { tests as_user $WALLS; }

# What the machine has written on its way is no part of our first line.
echo
for scenario in limits limits_as_user no_delegation unit cases cases_as_user isolation isolation_as_user; do
    case " ${SCENARIOS:-limits limits_as_user no_delegation unit} " in *" $scenario "*) ;; *) continue ;; esac
    echo "== $scenario"
    ( $scenario ) 2>&1
    echo "== $scenario: $?"
done
echo "== end"

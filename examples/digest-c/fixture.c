/* The contract tck at levels L0 and L1, so that a suite can provoke what plugbay.c promises. No product has it. */
#define _POSIX_C_SOURCE 200809L

#include <fnmatch.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "plugbay.h"
#include "sha256.h"

static const char *const ENTRIES[] = {"echo", "sleep", "stubborn", "spin", "fail", "note", "stray", "state"};
enum { ENTRY_COUNT = sizeof ENTRIES / sizeof *ENTRIES, CHILDREN = 64 };
static const uint8_t NIL[] = {0xc0};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t activations, calls_started;
static pb_buffer grant, secrets, last; /* as MessagePack; secrets: the names, sorted */
static char config_sum[65];
static bool left_out[ENTRY_COUNT];
static pid_t children[CHILDREN];
static size_t child_count;

static bool is_map(pb_value body) { return pb_typeof(body) == PB_MAP; }
static bool has(pb_value map, const char *name, pb_type type, bool needed) {
    pb_type found = pb_typeof(pb_field(map, name));
    return found == type || (!needed && found == PB_ABSENT);
}
static bool has_uint(pb_value map, const char *name, uint64_t max, bool needed) {
    pb_value value = pb_field(map, name);
    uint64_t n;
    return value.len ? pb_as_uint(value, max, &n) : !needed;
}
static uint64_t uint_of(pb_value map, const char *name, uint64_t otherwise) {
    uint64_t n = otherwise;
    pb_as_uint(pb_field(map, name), UINT64_MAX, &n);
    return n;
}
static bool flag(pb_value map, const char *name) {
    bool set = false;
    pb_as_bool(pb_field(map, name), &set);
    return set;
}
/* A copy that ends with NUL, to be freed; NULL if it is absent. */
static char *text_of(pb_value map, const char *name) {
    size_t len;
    const char *at = pb_as_text(pb_field(map, name), &len);
    char *copy = at ? malloc(len + 1) : NULL;
    if (copy) memcpy(copy, at, len), copy[len] = 0;
    return copy;
}

/* A call has begun: what its head says is what `state` shows. */
static void begin(pb_call *call, bool counts) {
    static const char *const FIELDS[] = {"method", "deadline", "idle", "key", "attempt", "scopes", "trace"};
    pb_value head = pb_head(call);
    pthread_mutex_lock(&lock);
    calls_started += counts;
    size_t n = 0;
    for (size_t i = 0; i < 7; i++) n += pb_field(head, FIELDS[i]).len != 0;
    last.len = 0;
    pb_map(&last, n);
    for (size_t i = 0; i < 7; i++) {
        pb_value value = pb_field(head, FIELDS[i]);
        if (value.len) pb_text(&last, FIELDS[i]), pb_copy(&last, value);
    }
    pthread_mutex_unlock(&lock);
}

static void nothing_to_say(pb_call *call) {
    pb_buffer result = {0};
    pb_map(&result, 0);
    pb_ok(call, &result);
    pb_free(&result);
}

/* --- The methods ------------------------------------------------------------------------------------- */

static bool takes_any(pb_value body) { return body.len != 0; }
static void run_echo(pb_call *call) {
    begin(call, true);
    pb_buffer same = {0};
    if (pb_has_body(call)) pb_copy(&same, pb_body(call));
    pb_ok(call, &same);
    pb_free(&same);
}

static bool takes_ms(pb_value body) { return is_map(body) && has_uint(body, "ms", UINT64_C(1) << 53, true); }
static void run_sleep(pb_call *call) {
    begin(call, true);
    pb_waited how = pb_wait(call, uint_of(pb_body(call), "ms", 0));
    if (how == PB_DONE) nothing_to_say(call);
    else pb_gave_up(call, how);
}

static uint64_t now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000 + (uint64_t)at.tv_nsec / 1000000;
}
static void run_stubborn(pb_call *call) {
    begin(call, true);
    uint64_t end = now_ms() + uint_of(pb_body(call), "ms", 0);
    for (uint64_t now; (now = now_ms()) < end;) {
        uint64_t rest = end - now;
        nanosleep(&(struct timespec){(time_t)(rest / 1000), (long)(rest % 1000) * 1000000L}, NULL);
    }
    nothing_to_say(call);
}
static void run_spin(pb_call *call) {
    begin(call, true);
    for (uint64_t end = now_ms() + uint_of(pb_body(call), "ms", 0); now_ms() < end;) {}
    nothing_to_say(call);
}

/* Matches ^[a-z0-9]+(\.[a-z0-9_]+)+$ (R-ER-05). */
static bool is_reason(pb_value value) {
    size_t len, dots = 0, since = 0;
    const char *at = pb_as_text(value, &len);
    if (!at) return true; /* absent */
    for (size_t i = 0; i < len; i++) {
        bool word = (at[i] >= 'a' && at[i] <= 'z') || (at[i] >= '0' && at[i] <= '9') || (dots && at[i] == '_');
        if (at[i] == '.' && since) dots++, since = 0;
        else if (word) since++;
        else return false;
    }
    return dots && since;
}
static bool takes_fail(pb_value body) {
    static const char *const CODES[] = {"cancelled", "deadline_exceeded", "invalid_argument", "not_found", "conflict",
                                        "permission_denied", "failed_precondition", "resource_exhausted", "unavailable",
                                        "unimplemented", "internal", "unknown"};
    pb_value code = pb_field(body, "code");
    bool known = code.len == 0;
    for (size_t i = 0; i < 12; i++) known |= pb_is_text(code, CODES[i]);
    return is_map(body) && known && has(body, "reason", PB_STR, false) && is_reason(pb_field(body, "reason")) &&
           has(body, "retry", PB_STR, false) && has_uint(body, "after", (UINT64_C(1) << 53) - 1, false) &&
           has(body, "msg", PB_STR, false) && has(body, "throw", PB_BOOL, false);
}
static void copy_fields(pb_buffer *to, pb_value from, const char *const names[], size_t count, bool with_code) {
    size_t n = with_code;
    for (size_t i = 0; i < count; i++) n += pb_field(from, names[i]).len != 0;
    pb_map(to, n);
    if (with_code) pb_text(to, "code"), pb_text(to, "internal");
    for (size_t i = 0; i < count; i++) {
        pb_value value = pb_field(from, names[i]);
        if (value.len) pb_text(to, names[i]), pb_copy(to, value);
    }
}
static void run_fail(pb_call *call) {
    static const char *const ERR[] = {"code", "reason", "retry", "after"}, *const BODY[] = {"msg", "data"};
    pb_value args = pb_body(call);
    begin(call, !pb_is_text(pb_field(args, "retry"), "safe"));
    if (flag(args, "throw")) return; /* the bug that C has: a way out without an answer */
    pb_buffer err = {0}, body = {0};
    copy_fields(&err, args, ERR, 4, pb_field(args, "code").len == 0);
    copy_fields(&body, args, BODY, 2, false);
    pb_err_raw(call, &err, &body);
    pb_free(&err), pb_free(&body);
}

static bool takes_note(pb_value body) {
    pb_value topic = pb_field(body, "topic");
    return is_map(body) && (pb_is_text(topic, "log") || pb_is_text(topic, "progress") || pb_is_text(topic, "retire")) &&
           has_uint(body, "count", UINT32_MAX, false) && has(body, "lvl", PB_STR, false) &&
           has(body, "event", PB_STR, false) && has(body, "reason", PB_STR, false) && has(body, "msg", PB_STR, false);
}
static void run_note(pb_call *call) {
    static const char *const LOG[] = {"topic", "lvl", "event"}, *const RETIRE[] = {"topic", "reason"};
    static const char *const BODY[] = {"msg"};
    pb_value args = pb_body(call), topic = pb_field(args, "topic");
    begin(call, true);
    uint64_t count = uint_of(args, "count", 1);
    for (uint64_t k = 1; k <= count; k++) {
        pb_buffer head = {0}, body = {0};
        if (pb_field(args, "msg").len) copy_fields(&body, args, BODY, 1, false);
        if (pb_is_text(topic, "retire")) {
            copy_fields(&head, args, RETIRE, 2, false);
            pb_note(NULL, &head, NULL);
        } else if (pb_is_text(topic, "log")) {
            copy_fields(&head, args, LOG, 3, false);
            pb_note(call, &head, &body);
        } else if (k == 1 || k == count) { /* R-NO-05: what lies between is dropped */
            pb_map(&head, 3);
            pb_text(&head, "topic"), pb_copy(&head, topic);
            pb_text(&head, "n"), pb_uint(&head, k);
            pb_text(&head, "total"), pb_uint(&head, count);
            pb_note(call, &head, &body);
        }
        pb_free(&head), pb_free(&body);
    }
    nothing_to_say(call);
}

static bool takes_stray(pb_value body) {
    pb_value via = pb_field(body, "via");
    bool child = pb_is_text(via, "child");
    return is_map(body) && has(body, "text", PB_STR, true) &&
           (child || pb_is_text(via, "print") || pb_is_text(via, "stderr")) &&
           has_uint(body, "bytes", UINT32_MAX, false) && has(body, "stay", PB_BOOL, false) &&
           (child || !flag(body, "stay"));
}
static void write_all(int fd, const char *at, size_t len) {
    while (len) {
        ssize_t n = write(fd, at, len);
        if (n <= 0) return;
        at += n, len -= (size_t)n;
    }
}
static void run_stray(pb_call *call) {
    pb_value args = pb_body(call), via = pb_field(args, "via");
    begin(call, true);
    char *line = text_of(args, "text");
    size_t len = strlen(line);
    line[len++] = '\n'; /* in the place of NUL */
    uint64_t bytes = uint_of(args, "bytes", len), done = 0;
    bool stay = flag(args, "stay");
    pid_t child = 0;
    if (pb_is_text(via, "child")) {
        pthread_mutex_lock(&lock); /* so that whoever disposes sees it or waits */
        child = stay && child_count == CHILDREN ? -1 : fork();
        if (child == 0) {
            pb_in_child();
            for (; done < bytes || done == 0; done += len) write_all(1, line, len);
            while (stay) pause();
            _exit(0);
        }
        if (0 < child && stay) children[child_count++] = child;
        pthread_mutex_unlock(&lock);
        if (0 < child && !stay) waitpid(child, NULL, 0);
    } else if (pb_is_text(via, "print")) {
        for (; done < bytes || done == 0; done += len) fwrite(line, 1, len, stdout);
        fflush(stdout);
    } else {
        for (; done < bytes || done == 0; done += len) write_all(2, line, len);
    }
    free(line);
    if (child < 0) {
        pb_err(call, "resource_exhausted", "tck.no_child", "no", NULL);
        return;
    }
    pb_buffer result = {0};
    pb_map(&result, stay);
    if (stay) pb_text(&result, "pid"), pb_uint(&result, (uint64_t)child);
    pb_ok(call, &result);
    pb_free(&result);
}

static void run_state(pb_call *call) {
    size_t running = pb_running();
    pb_buffer result = {0};
    pthread_mutex_lock(&lock);
    pb_map(&result, 9);
    pb_text(&result, "activations"), pb_uint(&result, activations);
    pb_text(&result, "calls_started"), pb_uint(&result, calls_started);
    pb_text(&result, "open_calls"), pb_uint(&result, running);
    pb_text(&result, "background"), pb_uint(&result, 0);
    pb_text(&result, "children"), pb_uint(&result, child_count);
    pb_text(&result, "scopes"), pb_raw(&result, grant.at, grant.len);
    pb_text(&result, "secrets"), pb_raw(&result, secrets.at, secrets.len);
    pb_text(&result, "config_sha256"), pb_text(&result, config_sum);
    pb_text(&result, "last");
    if (last.len) pb_raw(&result, last.at, last.len);
    else pb_map(&result, 0);
    pthread_mutex_unlock(&lock);
    pb_ok(call, &result);
    pb_free(&result);
}

static const pb_method METHODS[ENTRY_COUNT] = {
    {"tck.echo", takes_any, run_echo},     {"tck.sleep", takes_ms, run_sleep}, {"tck.stubborn", takes_ms, run_stubborn},
    {"tck.spin", takes_ms, run_spin},      {"tck.fail", takes_fail, run_fail}, {"tck.note", takes_note, run_note},
    {"tck.stray", takes_stray, run_stray}, {"tck.state", is_map, run_state},
};

/* --- The lifecycle ----------------------------------------------------------------------------------- */

static bool offers(const char *method) {
    for (size_t i = 0; i < ENTRY_COUNT; i++)
        if (strcmp(METHODS[i].name, method) == 0) return !left_out[i];
    return false;
}

static void entries(pb_buffer *to, const bool without[ENTRY_COUNT]) {
    size_t n = 0;
    for (size_t i = 0; i < ENTRY_COUNT; i++) n += !without[i];
    pb_array(to, n);
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (without[i]) continue;
        pb_map(to, 2);
        pb_text(to, "kind"), pb_text(to, "tck");
        pb_text(to, "name"), pb_text(to, ENTRIES[i]);
    }
}

static void manifest(pb_buffer *to) {
    static const bool NONE[ENTRY_COUNT];
    pb_map(to, 2);
    pb_text(to, "provides"), entries(to, NONE);
    pb_text(to, "wants"), pb_array(to, 0);
}

static bool all_text(pb_value array) {
    for (pb_value it = {0}; (it = pb_next(array, it)).len;)
        if (pb_typeof(it) != PB_STR) return false;
    return true;
}
static bool is_config(pb_value config) {
    return config.len == 0 ||
           (is_map(config) && has_uint(config, "slow_ms", (UINT64_C(1) << 53) - 1, false) &&
            has(config, "fail", PB_STR, false) && has(config, "need", PB_ARRAY, false) &&
            all_text(pb_field(config, "need")) &&
            has(config, "provides", PB_ARRAY, false) && all_text(pb_field(config, "provides")));
}

static int by_bytes(const void *a, const void *b) {
    const pb_value *x = a, *y = b;
    size_t n, m;
    const char *s = pb_as_text(*x, &n), *t = pb_as_text(*y, &m);
    int order = memcmp(s, t, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

/* The scopes that are needed and not granted; true if there are any. */
static bool missing(pb_buffer *to, pb_value need, pb_value granted) {
    pb_buffer found = {0};
    size_t n = 0;
    for (pb_value want = {0}; (want = pb_next(need, want)).len;) {
        bool there = false;
        for (pb_value it = {0}; (it = pb_next(granted, it)).len;) there |= by_bytes(&want, &it) == 0;
        if (!there) pb_copy(&found, want), n++;
    }
    pb_map(to, 1), pb_text(to, "data"), pb_map(to, 1), pb_text(to, "scopes"), pb_array(to, n);
    pb_raw(to, found.at, found.len);
    pb_free(&found);
    return n != 0;
}

static bool activate(pb_call *call) {
    pb_value body = pb_body(call), config = pb_field(body, "config"), granted = pb_field(body, "grant");
    if (!is_config(config)) {
        pb_err(call, "invalid_argument", "tck.bad_config", "no", NULL);
        return false;
    }
    pb_waited how = pb_wait(call, uint_of(config, "slow_ms", 0));
    if (how != PB_DONE) {
        pb_gave_up(call, how);
        return false;
    }
    char *fail = text_of(config, "fail");
    if (fail) {
        char reason[200];
        snprintf(reason, sizeof reason, "tck.%s", fail);
        free(fail);
        pb_err(call, "invalid_argument", reason, "no", NULL);
        return false;
    }
    pb_buffer lack = {0};
    if (missing(&lack, pb_field(config, "need"), granted)) {
        pb_buffer err = {0};
        pb_map(&err, 3);
        pb_text(&err, "code"), pb_text(&err, "failed_precondition");
        pb_text(&err, "reason"), pb_text(&err, "pb.missing_scope");
        pb_text(&err, "retry"), pb_text(&err, "no");
        pb_err_raw(call, &err, &lack);
        pb_free(&err), pb_free(&lack);
        return false;
    }
    pb_free(&lack);

    pb_value globs = pb_field(config, "provides"), names = pb_field(body, "secrets");
    pthread_mutex_lock(&lock);
    activations++;
    grant.len = secrets.len = 0;
    if (granted.len) pb_copy(&grant, granted);
    else pb_array(&grant, 0);
    size_t n = 0, count = pb_count(names);
    pb_value *sorted = calloc(count + 1, sizeof *sorted), key = {0};
    while (sorted && (key = pb_next(names, key)).len) sorted[n++] = key, key = pb_next(names, key);
    qsort(sorted, n, sizeof *sorted, by_bytes);
    pb_array(&secrets, n);
    for (size_t i = 0; i < n; i++) pb_copy(&secrets, sorted[i]);
    free(sorted);
    sha256_hex(config.len ? config.at : NIL, config.len ? config.len : 1, config_sum);
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        bool named = globs.len == 0;
        for (pb_value it = {0}; (it = pb_next(globs, it)).len;) {
            size_t len;
            const char *at = pb_as_text(it, &len);
            char pattern[129] = {0};
            if (len < sizeof pattern) memcpy(pattern, at, len), named |= fnmatch(pattern, ENTRIES[i], 0) == 0;
        }
        left_out[i] = !named;
    }
    pb_buffer result = {0};
    pb_map(&result, globs.len ? 1 : 0);
    if (globs.len) pb_text(&result, "provides"), entries(&result, left_out);
    pthread_mutex_unlock(&lock);
    pb_ok(call, &result);
    pb_free(&result);
    return true;
}

/* Ends the children that stay (R-TK-11). */
static void dispose(void) {
    pthread_mutex_lock(&lock);
    for (; child_count; child_count--) {
        kill(children[child_count - 1], SIGKILL);
        waitpid(children[child_count - 1], NULL, 0);
    }
    pthread_mutex_unlock(&lock);
}

int main(void) {
    static const pb_plugin plugin = {
        .name = "example.fixture", .version = "1.0.0", .methods = METHODS, .method_count = ENTRY_COUNT,
        .manifest = manifest, .activate = activate, .offers = offers, .dispose = dispose,
        .hint = "This is a fixture. Try: plugbay-tck sdk -- ./fixture",
    };
    pb_serve(&plugin);
}

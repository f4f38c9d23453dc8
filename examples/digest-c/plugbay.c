#define _POSIX_C_SOURCE 200809L

#include "plugbay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 1, CLOSE, PING, PONG, CALL = 0x10, ITEM, END, CANCEL, CREDIT, NOTE = 0x90 };
enum { FRAME_MAX = 1 << 20, WINDOW = 1 << 16, CALLS = 16, BEFORE_HELLO = 1 << 16, NOTES_MAX = 1 << 20 };
enum { HEADER = 12, HEAD_DEEP = 8, BODY_DEEP = 128 };
#define INTEGER_MAX ((UINT64_C(1) << 53) - 1)

static void *grow(void *old, size_t size) {
    void *new = realloc(old, size ? size : 1);
    if (!new) {
        fputs("out of memory\n", stderr);
        _exit(70);
    }
    return new;
}

/* --- MessagePack: reading ---------------------------------------------------------------------------- */

/* What a first byte says: the type, how many bytes of length or number follow, and what is in the byte itself. */
typedef struct {
    pb_type type;
    unsigned extra;
    uint32_t inside;
    bool bad;
} marker;

static marker marker_of(uint8_t b) {
    static const struct { pb_type type; uint8_t extra; } rows[] = {
        /* c4 */ {PB_BIN, 1}, {PB_BIN, 2}, {PB_BIN, 4}, {PB_ABSENT, 0}, {PB_ABSENT, 0}, {PB_ABSENT, 0},
        /* ca */ {PB_FLOAT, 4}, {PB_FLOAT, 8}, {PB_INT, 1}, {PB_INT, 2}, {PB_INT, 4}, {PB_INT, 8},
        /* d0 */ {PB_INT, 1}, {PB_INT, 2}, {PB_INT, 4}, {PB_INT, 8},
        /* d4 */ {PB_ABSENT, 0}, {PB_ABSENT, 0}, {PB_ABSENT, 0}, {PB_ABSENT, 0}, {PB_ABSENT, 0},
        /* d9 */ {PB_STR, 1}, {PB_STR, 2}, {PB_STR, 4}, {PB_ARRAY, 2}, {PB_ARRAY, 4}, {PB_MAP, 2}, {PB_MAP, 4},
    };
    if (b < 0x80 || 0xe0 <= b) return (marker){PB_INT, 0, b, false};
    if (b < 0x90) return (marker){PB_MAP, 0, b & 15, false};
    if (b < 0xa0) return (marker){PB_ARRAY, 0, b & 15, false};
    if (b < 0xc0) return (marker){PB_STR, 0, b & 31, false};
    if (b == 0xc0) return (marker){PB_NIL, 0, 0, false};
    if (b == 0xc2 || b == 0xc3) return (marker){PB_BOOL, 0, b & 1, false};
    if (b == 0xc1 || rows[b - 0xc4].type == PB_ABSENT) return (marker){PB_ABSENT, 0, 0, true};
    return (marker){rows[b - 0xc4].type, rows[b - 0xc4].extra, 0, false};
}

static uint64_t big_endian(const uint8_t *at, unsigned width) {
    uint64_t n = 0;
    while (width--) n = n << 8 | *at++;
    return n;
}

static bool is_utf8(const uint8_t *s, size_t len) {
    for (size_t i = 0; i < len;) {
        unsigned more = s[i] < 0x80 ? 0 : s[i] < 0xc2 ? 9 : s[i] < 0xe0 ? 1 : s[i] < 0xf0 ? 2 : s[i] < 0xf5 ? 3 : 9;
        if (more == 9 || len - i <= more) return false;
        for (unsigned k = 1; k <= more; k++)
            if ((s[i + k] & 0xc0) != 0x80) return false;
        /* Overlong, a surrogate, or above U+10FFFF. */
        if ((s[i] == 0xe0 && s[i + 1] < 0xa0) || (s[i] == 0xed && 0x9f < s[i + 1]) ||
            (s[i] == 0xf0 && s[i + 1] < 0x90) || (s[i] == 0xf4 && 0x8f < s[i + 1]))
            return false;
        i += more + 1;
    }
    return true;
}

static int by_text(const void *a, const void *b) {
    const pb_value *x = a, *y = b;
    size_t len = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->at, y->at, len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* Steps over one value and judges it; NULL if it is none. Recursion is bounded by `deep`. */
static const uint8_t *step(const uint8_t *at, const uint8_t *end, unsigned deep, bool head) {
    if (at == end) return NULL;
    uint8_t first = *at++;
    marker m = marker_of(first);
    if (m.bad || (size_t)(end - at) < m.extra) return NULL;
    uint64_t n = m.extra ? big_endian(at, m.extra) : m.inside;
    at += m.extra;
    if (m.type == PB_INT) {
        /* d3 with its highest bit is negative, and not large. */
        bool large = head && INTEGER_MAX < n && !(first == 0xd3 && n >> 63);
        return large ? NULL : at;
    }
    if (m.type == PB_STR || m.type == PB_BIN) {
        if ((uint64_t)(end - at) < n || (m.type == PB_STR && !is_utf8(at, n))) return NULL;
        return at + n;
    }
    if (m.type != PB_ARRAY && m.type != PB_MAP) return at;
    if (deep == 0) return NULL;
    pb_value *keys = NULL;
    size_t count = 0, room = 0;
    for (uint64_t i = 0; at && i < n; i++) {
        if (m.type == PB_MAP) {
            const uint8_t *key = at;
            if (at == end || marker_of(*at).type != PB_STR || !(at = step(at, end, deep - 1, head))) {
                at = NULL;
                break;
            }
            if (head) {
                if (count == room) keys = grow(keys, (room = room ? 2 * room : 8) * sizeof *keys);
                marker k = marker_of(*key);
                keys[count].at = key + 1 + k.extra; /* the text alone: markers of any width are one key */
                keys[count].len = (size_t)(at - keys[count].at);
                count++;
            }
        }
        at = step(at, end, deep - 1, head);
    }
    if (at && 1 < count) {
        qsort(keys, count, sizeof *keys, by_text);
        for (size_t i = 1; i < count; i++)
            if (by_text(&keys[i - 1], &keys[i]) == 0) at = NULL; /* R-HD-03 */
    }
    free(keys);
    return at;
}

static bool is_head(const uint8_t *at, size_t len) {
    return len && marker_of(*at).type == PB_MAP && step(at, at + len, HEAD_DEEP, true) == at + len;
}

bool pb_is_body(const uint8_t *at, size_t len) { return step(at, at + len, BODY_DEEP, false) == at + len; }

/* The value at this place in bytes that have been judged. */
static pb_value value_at(const uint8_t *at, const uint8_t *end) {
    const uint8_t *next = at < end ? step(at, end, BODY_DEEP, false) : NULL;
    return next ? (pb_value){at, (size_t)(next - at)} : (pb_value){0};
}

pb_type pb_typeof(pb_value value) { return value.len ? marker_of(*value.at).type : PB_ABSENT; }

size_t pb_count(pb_value value) {
    pb_type type = pb_typeof(value);
    if (type != PB_ARRAY && type != PB_MAP) return 0;
    marker m = marker_of(*value.at);
    return m.extra ? big_endian(value.at + 1, m.extra) : m.inside;
}

pb_value pb_next(pb_value container, pb_value last) {
    if (pb_count(container) == 0) return (pb_value){0};
    const uint8_t *first = container.at + 1 + marker_of(*container.at).extra;
    return value_at(last.len ? last.at + last.len : first, container.at + container.len);
}

pb_value pb_field(pb_value map, const char *name) {
    pb_value found = {0}, key = {0};
    if (pb_typeof(map) != PB_MAP) return found;
    while ((key = pb_next(map, key)).len) {
        pb_value value = pb_next(map, key);
        if (pb_is_text(key, name)) found = value;
        key = value;
    }
    return pb_typeof(found) == PB_NIL ? (pb_value){0} : found;
}

bool pb_as_uint(pb_value value, uint64_t max, uint64_t *out) {
    if (pb_typeof(value) != PB_INT) return false;
    marker m = marker_of(*value.at);
    uint64_t n = m.extra ? big_endian(value.at + 1, m.extra) : *value.at;
    bool negative = m.extra ? 0xd0 <= *value.at && n >> (8 * m.extra - 1) : 0xe0 <= *value.at;
    if (negative || max < n) return false;
    *out = n;
    return true;
}

bool pb_as_bool(pb_value value, bool *out) {
    if (pb_typeof(value) != PB_BOOL) return false;
    *out = *value.at & 1;
    return true;
}

const char *pb_as_text(pb_value value, size_t *len) {
    pb_type type = pb_typeof(value);
    if (type != PB_STR && type != PB_BIN) return NULL;
    size_t skip = 1 + marker_of(*value.at).extra;
    *len = value.len - skip;
    return (const char *)value.at + skip;
}

bool pb_is_text(pb_value value, const char *text) {
    size_t len;
    const char *at = pb_typeof(value) == PB_STR ? pb_as_text(value, &len) : NULL;
    return at && len == strlen(text) && memcmp(at, text, len) == 0;
}

/* --- MessagePack: writing ---------------------------------------------------------------------------- */

void pb_raw(pb_buffer *to, const void *bytes, size_t len) {
    if (to->room - to->len < len) {
        to->room = 2 * to->room + len;
        to->at = grow(to->at, to->room);
    }
    if (len) memcpy(to->at + to->len, bytes, len);
    to->len += len;
}

static void big(pb_buffer *to, uint8_t code, uint64_t n, unsigned width) {
    uint8_t bytes[9] = {code};
    for (unsigned i = 0; i < width; i++) bytes[1 + i] = (uint8_t)(n >> 8 * (width - 1 - i));
    pb_raw(to, bytes, 1 + width);
}

/* The shortest marker; `code` is that of the 8, 16 and 32 bit form in turn, 0 where there is none. */
static void sized(pb_buffer *to, uint8_t fixed, size_t inside, const uint8_t code[3], size_t n) {
    if (n < inside) big(to, (uint8_t)(fixed | n), 0, 0);
    else if (code[0] && n < 256) big(to, code[0], n, 1);
    else if (n < 65536) big(to, code[1], n, 2);
    else big(to, code[2], n, 4);
}

void pb_map(pb_buffer *to, size_t n) { sized(to, 0x80, 16, (uint8_t[]){0, 0xde, 0xdf}, n); }
void pb_array(pb_buffer *to, size_t n) { sized(to, 0x90, 16, (uint8_t[]){0, 0xdc, 0xdd}, n); }
void pb_str(pb_buffer *to, const char *text, size_t len) {
    sized(to, 0xa0, 32, (uint8_t[]){0xd9, 0xda, 0xdb}, len);
    pb_raw(to, text, len);
}
void pb_text(pb_buffer *to, const char *text) { pb_str(to, text, strlen(text)); }
void pb_uint(pb_buffer *to, uint64_t n) {
    if (n >> 32) big(to, 0xcf, n, 8);
    else sized(to, 0, 128, (uint8_t[]){0xcc, 0xcd, 0xce}, n);
}
void pb_bool(pb_buffer *to, bool value) { big(to, value ? 0xc3 : 0xc2, 0, 0); }
void pb_copy(pb_buffer *to, pb_value value) { pb_raw(to, value.at, value.len); }
void pb_free(pb_buffer *buffer) {
    free(buffer->at);
    *buffer = (pb_buffer){0};
}

/* --- What all threads share -------------------------------------------------------------------------- */

typedef enum { READY, ACTIVATING, ACTIVE, DRAINING } stage;
/* What a frame that waits to be written stands for. */
typedef enum { PLAIN, OWED, SLOT } weight;

typedef struct frame {
    struct frame *next;
    weight weight;
    size_t len;
    uint8_t bytes[];
} frame;

struct pb_call {
    pb_call *next; /* of those that run, or whose function has not returned */
    bool answered, cancelled, lifecycle, expires;
    uint32_t id;
    const pb_method *method;
    uint8_t *bytes; /* head, then body */
    size_t head_len, body_len;
    struct timespec deadline;
    uint64_t idle;
    stage done; /* where the plugin is after an END ok, and... */
    stage failed; /* ...after any other; lifecycle steps only */
};

static struct {
    const pb_plugin *plugin;
    int in, out, wake[2];
    pthread_mutex_t lock;
    pthread_cond_t changed, to_write;
    stage stage;
    bool greeted, async, closed;
    uint64_t frame_max; /* of the host */
    uint32_t highest;
    size_t slots; /* calls whose END has not begun to leave: what a host sees as open */
    size_t running, owed, waiting;
    frame *first, **last;
    pb_call *calls;
} self;

static const uint8_t EMPTY[] = {0x80};

/* --- Time --------------------------------------------------------------------------------------------- */

static struct timespec later(uint64_t ms) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    if (ms > UINT32_MAX) ms = UINT32_MAX; /* 49 days */
    at.tv_sec += (time_t)(ms / 1000), at.tv_nsec += (long)(ms % 1000) * 1000000L;
    at.tv_sec += at.tv_nsec / 1000000000L, at.tv_nsec %= 1000000000L;
    return at;
}
static bool before(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* --- Writing frames ---------------------------------------------------------------------------------- */

static size_t body_at(size_t head_len, size_t body_len) {
    size_t end = HEADER + head_len;
    return body_len ? (end + 15) / 16 * 16 : end;
}

/* Queues a frame; the lock is held. */
static void send(uint8_t kind, uint32_t id, const pb_buffer *head, const void *body, size_t body_len, weight weight) {
    if (self.closed) return; /* R-LC-11 */
    size_t at = body_at(head->len, body_len);
    frame *it = grow(NULL, sizeof *it + at + body_len);
    it->next = NULL, it->weight = weight, it->len = at + body_len;
    memset(it->bytes, 0, at);
    it->bytes[0] = 0xc1, it->bytes[1] = kind;
    it->bytes[2] = (uint8_t)(head->len >> 8), it->bytes[3] = (uint8_t)head->len;
    for (int i = 0; i < 4; i++) {
        it->bytes[4 + i] = (uint8_t)(id >> (24 - 8 * i));
        it->bytes[8 + i] = (uint8_t)(body_len >> (24 - 8 * i));
    }
    memcpy(it->bytes + HEADER, head->at, head->len);
    if (body_len) memcpy(it->bytes + at, body, body_len);
    *self.last = it, self.last = &it->next;
    self.owed += weight == OWED;
    self.waiting += it->len;
    pthread_cond_signal(&self.to_write);
}

static _Noreturn void leave(int code);

/* Its own thread, so that reading goes on while the host does not read (R-FR-14). */
static void *writer(void *unused) {
    (void)unused;
    pthread_mutex_lock(&self.lock);
    for (;;) {
        while (!self.first) pthread_cond_wait(&self.to_write, &self.lock);
        frame *it = self.first;
        /* The host may answer as soon as it has read this, so the slot is free before it is written. */
        if (it->weight == SLOT) self.slots--;
        pthread_mutex_unlock(&self.lock);
        for (size_t done = 0; done < it->len;) {
            ssize_t n = write(self.out, it->bytes + done, it->len - done);
            if (0 < n) done += (size_t)n;
            else if (errno != EINTR) { /* nobody reads any more: R-PR-17 */
                pthread_mutex_lock(&self.lock);
                self.first = NULL;
                pthread_mutex_unlock(&self.lock);
                leave(0);
            }
        }
        pthread_mutex_lock(&self.lock);
        self.first = it->next;
        if (!self.first) self.last = &self.first;
        self.owed -= it->weight == OWED;
        self.waiting -= it->len;
        free(it);
        pthread_cond_broadcast(&self.changed);
    }
    return NULL;
}

/* The end of the process, from any thread, once. What waits to be written gets a moment to go. */
static _Noreturn void leave(int code) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    struct timespec until = later(700);
    pthread_mutex_lock(&self.lock);
    self.closed = true;
    if (self.plugin->dispose) self.plugin->dispose();
    while (self.first && pthread_cond_timedwait(&self.changed, &self.lock, &until) == 0) {}
    _exit(code);
}

/* CLOSE, and the end (R-ER-01, R-LC-21). */
static _Noreturn void stop(const char *code) {
    pb_buffer head = {0};
    bool version = strcmp(code, "version_unsupported") == 0;
    pb_map(&head, version ? 2 : 1);
    pb_text(&head, "code"), pb_text(&head, code);
    if (version) pb_text(&head, "supported"), pb_array(&head, 1), pb_uint(&head, 1);
    pthread_mutex_lock(&self.lock);
    send(CLOSE, 0, &head, NULL, 0, PLAIN);
    self.closed = true; /* in the same step: nothing comes after it (R-LC-11) */
    pthread_mutex_unlock(&self.lock);
    leave(1);
}

/* --- Ending calls ------------------------------------------------------------------------------------ */

static void write_err(pb_buffer *head, const char *code, const char *reason, const char *retry) {
    pb_map(head, 1 + !!reason + !!retry);
    pb_text(head, "code"), pb_text(head, code);
    if (reason) pb_text(head, "reason"), pb_text(head, reason);
    if (retry) pb_text(head, "retry"), pb_text(head, retry);
}

/* Who asks and does not read the answers (R-TO-08). The lock is held. */
static void calm(void) {
    if (self.owed <= 1024 + 4 * CALLS) return;
    pthread_mutex_unlock(&self.lock);
    stop("calm");
}

typedef struct {
    const char *code, *reason, *retry;
} refusal;

/* END of a call that does not run; the lock is held. */
static void refuse(uint32_t id, const refusal *why) {
    pb_buffer head = {0};
    pb_map(&head, 1), pb_text(&head, "err");
    write_err(&head, why->code, why->reason, why->retry);
    send(END, id, &head, NULL, 0, OWED);
    pb_free(&head);
    calm();
}

/* END, the change of state and the free slot are one step, so host and plugin agree on the order. */
static void answer(pb_call *call, const pb_buffer *err, const pb_buffer *body) {
    pthread_mutex_lock(&self.lock);
    if (!call->answered) {
        call->answered = true;
        pb_buffer head = {0};
        pb_map(&head, err ? 1 : 0);
        if (err) pb_text(&head, "err"), pb_raw(&head, err->at, err->len);
        size_t len = body ? body->len : 0;
        bool failed = err != NULL;
        if (65535 < head.len || self.frame_max < body_at(head.len, len) + len) { /* R-CA-09 */
            pb_free(&head);
            pb_map(&head, 1), pb_text(&head, "err");
            write_err(&head, "resource_exhausted", "pb.frame_limit", "no");
            len = 0, failed = true;
        }
        if (call->lifecycle) self.stage = failed ? call->failed : call->done;
        else self.running--;
        send(END, call->id, &head, len ? body->at : NULL, len, call->lifecycle ? PLAIN : SLOT);
        pb_free(&head);
        pthread_cond_broadcast(&self.changed);
    }
    pthread_mutex_unlock(&self.lock);
}

void pb_ok(pb_call *call, const pb_buffer *result) { answer(call, NULL, result); }
void pb_err_raw(pb_call *call, const pb_buffer *err, const pb_buffer *body) { answer(call, err, body); }

void pb_err(pb_call *call, const char *code, const char *reason, const char *retry, const char *msg) {
    pb_buffer err = {0}, body = {0};
    write_err(&err, code, reason, retry);
    if (msg) pb_map(&body, 1), pb_text(&body, "msg"), pb_text(&body, msg);
    answer(call, &err, &body);
    pb_free(&err), pb_free(&body);
}

void pb_gave_up(pb_call *call, pb_waited why) {
    if (why == PB_EXPIRED) pb_err(call, "deadline_exceeded", NULL, "maybe", NULL);
    else pb_err(call, "cancelled", NULL, "no", NULL);
}

/* --- What a call can do ------------------------------------------------------------------------------ */

pb_value pb_head(const pb_call *call) { return (pb_value){call->bytes, call->head_len}; }
bool pb_has_body(const pb_call *call) { return call->body_len != 0; }
pb_value pb_body(const pb_call *call) {
    pb_value body = {call->bytes + call->head_len, call->body_len};
    return call->body_len ? body : (pb_value){EMPTY, sizeof EMPTY};
}
size_t pb_running(void) {
    pthread_mutex_lock(&self.lock);
    size_t n = self.running;
    pthread_mutex_unlock(&self.lock);
    return n;
}

pb_waited pb_wait(pb_call *call, uint64_t ms) {
    struct timespec end = later(ms), sign = later(call->idle / 3);
    pb_waited how = PB_DONE;
    pthread_mutex_lock(&self.lock);
    for (;;) {
        struct timespec now = later(0), until = end;
        if (call->cancelled) { how = PB_CANCELLED; break; }
        if (call->expires && !before(now, call->deadline)) { how = PB_EXPIRED; break; }
        if (!before(now, end)) break;
        if (call->expires && before(call->deadline, until)) until = call->deadline;
        if (call->idle && before(sign, until)) until = sign;
        pthread_cond_timedwait(&self.changed, &self.lock, &until);
        if (call->idle && !before(later(0), sign)) {
            pb_buffer head = {0}; /* R-TO-10 */
            pb_map(&head, 1), pb_text(&head, "topic"), pb_text(&head, "progress");
            send(NOTE, call->id, &head, NULL, 0, PLAIN);
            pb_free(&head);
            sign = later(call->idle / 3);
        }
    }
    pthread_mutex_unlock(&self.lock);
    return how;
}

void pb_note(pb_call *call, const pb_buffer *head, const pb_buffer *body) {
    size_t len = body ? body->len : 0, size = body_at(head->len, len) + len;
    pthread_mutex_lock(&self.lock);
    bool late = call && call->answered;
    if (!late && size <= self.frame_max && self.waiting < NOTES_MAX)
        send(NOTE, call ? call->id : 0, head, body ? body->at : NULL, len, PLAIN);
    pthread_mutex_unlock(&self.lock);
}

void pb_in_child(void) { close(self.in), close(self.out), close(self.wake[0]), close(self.wake[1]); }

/* --- Running calls ----------------------------------------------------------------------------------- */

/* The lock is held. */
static void forget(pb_call *call) {
    pb_call **at = &self.calls;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    free(call->bytes);
    free(call);
}

static void *run(void *argument) {
    pb_call *call = argument;
    call->method->run(call);
    if (!call->answered) pb_err(call, "internal", NULL, "no", "the function returned without an answer");
    pthread_mutex_lock(&self.lock);
    forget(call);
    pthread_mutex_unlock(&self.lock);
    return NULL;
}

static void activate(pb_call *call) {
    if (self.plugin->activate) self.plugin->activate(call);
    else pb_ok(call, NULL);
}

static void deactivate(pb_call *call) {
    pthread_mutex_lock(&self.lock);
    while (self.running) pthread_cond_wait(&self.changed, &self.lock);
    pthread_mutex_unlock(&self.lock);
    if (self.plugin->dispose) self.plugin->dispose();
    pb_ok(call, NULL);
}

static bool optional(pb_value map, const char *name, pb_type type) {
    pb_type found = pb_typeof(pb_field(map, name));
    return found == PB_ABSENT || found == type;
}
static bool takes_activate(pb_value body) {
    pb_value secrets = pb_field(body, "secrets"), grant = pb_field(body, "grant"), key = {0}, scope = {0};
    if (pb_typeof(body) != PB_MAP || !optional(body, "grant", PB_ARRAY)) return false;
    if (!optional(body, "secrets", PB_MAP)) return false;
    while ((scope = pb_next(grant, scope)).len)
        if (pb_typeof(scope) != PB_STR) return false;
    while ((key = pb_next(secrets, key)).len) {
        pb_value value = pb_next(secrets, key);
        if (pb_typeof(value) != PB_STR) return false;
        key = value;
    }
    return true;
}
static bool takes_deactivate(pb_value body) {
    return pb_typeof(body) == PB_MAP && optional(body, "if_idle", PB_BOOL);
}

static const pb_method LIFECYCLE[] = {{"plugin.activate", takes_activate, activate},
                                      {"plugin.deactivate", takes_deactivate, deactivate}};

static const pb_method *find(pb_value name) {
    for (size_t i = 0; i < 2; i++)
        if (pb_is_text(name, LIFECYCLE[i].name)) return &LIFECYCLE[i];
    for (size_t i = 0; i < self.plugin->method_count; i++) {
        const pb_method *it = &self.plugin->methods[i];
        if (pb_is_text(name, it->name)) return !self.plugin->offers || self.plugin->offers(it->name) ? it : NULL;
    }
    return NULL;
}

static const refusal INACTIVE = {"failed_precondition", "pb.inactive", "safe"};
static const refusal ALREADY_ACTIVE = {"failed_precondition", "pb.already_active", "no"};
static const refusal IN_DRAIN = {"unavailable", "pb.draining", "safe"};
static const refusal TOO_MANY = {"resource_exhausted", "pb.too_many_calls", "safe"};
static const refusal UNKNOWN = {"unimplemented", "pb.unknown_method", "no"};
static const refusal BAD_BODY = {"invalid_argument", "pb.bad_body", "no"};
static const refusal BUSY = {"failed_precondition", "pb.busy", "safe"};

/* Why a CALL does not run: by state, limit, method and body, in this order (R-GT-01). The lock is held. */
static const refusal *judge(pb_value name, pb_value args, bool is_value, const pb_method **method) {
    size_t len;
    const char *text = pb_as_text(name, &len);
    bool of_plugin = 7 <= len && memcmp(text, "plugin.", 7) == 0; /* R-GT-06 */
    bool to_activate = pb_is_text(name, "plugin.activate"), to_deactivate = pb_is_text(name, "plugin.deactivate");
    bool if_idle = false;
    if (self.stage == DRAINING) return &IN_DRAIN;
    if (self.stage == ACTIVE && to_activate) return &ALREADY_ACTIVE;
    if (self.stage == ACTIVATING || (self.stage == READY && !to_activate)) return &INACTIVE;
    if (!of_plugin && (self.async ? CALLS : 1) <= self.slots) return &TOO_MANY;
    if (!(*method = find(name))) return &UNKNOWN;
    if (!is_value || !(*method)->takes(args)) return &BAD_BODY;
    if (to_deactivate && pb_as_bool(pb_field(args, "if_idle"), &if_idle) && if_idle && self.running) return &BUSY;
    return NULL;
}

/* A CALL whose id and head are right. The lock is held. */
static void admit(uint32_t id, pb_value head, const uint8_t *body, size_t body_len) {
    pb_value name = pb_field(head, "method"), args = {body, body_len};
    if (body_len == 0) args = (pb_value){EMPTY, sizeof EMPTY};
    const pb_method *method;
    const refusal *no = judge(name, args, pb_is_body(args.at, args.len), &method);
    if (no) {
        refuse(id, no);
        return;
    }
    pb_call *call = grow(NULL, sizeof *call);
    *call = (pb_call){.next = self.calls, .id = id, .method = method, .head_len = head.len, .body_len = body_len};
    self.calls = call;
    call->bytes = grow(NULL, head.len + body_len);
    memcpy(call->bytes, head.at, head.len);
    if (body_len) memcpy(call->bytes + head.len, body, body_len);
    uint64_t ms = 0;
    if ((call->expires = pb_as_uint(pb_field(head, "deadline"), INTEGER_MAX, &ms))) call->deadline = later(ms);
    if (!pb_as_uint(pb_field(head, "idle"), INTEGER_MAX, &call->idle)) call->idle = 0;
    bool to_activate = method == &LIFECYCLE[0];
    if ((call->lifecycle = to_activate || method == &LIFECYCLE[1])) {
        self.stage = to_activate ? ACTIVATING : DRAINING;
        call->done = to_activate ? ACTIVE : READY, call->failed = to_activate ? READY : ACTIVE;
    } else {
        self.slots++, self.running++;
    }
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    int failed = pthread_create(&thread, &attr, run, call);
    pthread_attr_destroy(&attr);
    if (failed) {
        pthread_mutex_unlock(&self.lock);
        pb_err(call, "resource_exhausted", "example.no_thread", "safe", strerror(failed));
        pthread_mutex_lock(&self.lock);
        forget(call);
    }
}

/* --- Reading frames ---------------------------------------------------------------------------------- */

/* The fields of a head. `max` is that of an integer; `of` are the fields of a map inside. */
typedef struct field {
    const char *name;
    pb_type type;
    uint64_t max;
    bool needed;
    const struct field *of;
} field;

static const field LIMITS[] = {{"frame", PB_INT, UINT32_MAX, true, 0}, {"window", PB_INT, UINT32_MAX, true, 0},
                               {"calls", PB_INT, UINT16_MAX, true, 0}, {0}};
static const field WHO[] = {{"name", PB_STR, 0, 0, 0}, {"version", PB_STR, 0, 0, 0}, {"sdk", PB_STR, 0, 0, 0}, {0}};
static const field ERR[] = {{"code", PB_STR, 0, true, 0}, {"reason", PB_STR, 0, 0, 0}, {"retry", PB_STR, 0, 0, 0},
                            {"after", PB_INT, INTEGER_MAX, 0, 0}, {0}};
static const field OF_HELLO[] = {{"versions", PB_ARRAY, 0, 0, 0}, {"features", PB_ARRAY, 0, 0, 0},
                                 {"limits", PB_MAP, 0, true, LIMITS}, {"host", PB_MAP, 0, 0, WHO}, {0}};
static const field OF_CLOSE[] = {{"code", PB_STR, 0, true, 0}, {"supported", PB_ARRAY, 0, 0, 0}, {0}};
static const field OF_CALL[] = {{"method", PB_STR, 0, true, 0}, {"deadline", PB_INT, INTEGER_MAX, 0, 0},
                                {"idle", PB_INT, INTEGER_MAX, 0, 0}, {"in", PB_BOOL, 0, 0, 0},
                                {"parent", PB_INT, UINT32_MAX, 0, 0}, {"scopes", PB_ARRAY, 0, 0, 0},
                                {"key", PB_STR, 0, 0, 0}, {"attempt", PB_INT, UINT8_MAX, 0, 0}, {0}};
static const field OF_END[] = {{"err", PB_MAP, 0, 0, ERR}, {0}};
static const field OF_CANCEL[] = {{"reason", PB_STR, 0, 0, 0}, {0}};
static const field OF_CREDIT[] = {{"n", PB_INT, INTEGER_MAX, true, 0}, {0}};
static const field OF_NOTE[] = {{"topic", PB_STR, 0, true, 0}, {0}};
static const field NOTHING[] = {{0}};

static const field *fields_of(uint8_t kind) {
    switch (kind) {
    case HELLO: return OF_HELLO;
    case CLOSE: return OF_CLOSE;
    case CALL: return OF_CALL;
    case END: return OF_END;
    case CANCEL: return OF_CANCEL;
    case CREDIT: return OF_CREDIT;
    case NOTE: return OF_NOTE;
    case PING: case PONG: case ITEM: return NOTHING;
    default: return NULL;
    }
}

static bool fits(pb_value head, const field *fields) { /* R-HD-09 */
    for (const field *it = fields; it->name; it++) {
        pb_value value = pb_field(head, it->name);
        uint64_t n;
        if (value.len == 0 ? it->needed : pb_typeof(value) != it->type) return false;
        if (value.len && it->type == PB_INT && !pb_as_uint(value, it->max, &n)) return false;
        if (value.len && it->of && !fits(value, it->of)) return false;
    }
    return true;
}

static bool lists(pb_value list, const char *word) {
    for (pb_value it = {0}; (it = pb_next(list, it)).len;)
        if (pb_is_text(it, word)) return true;
    return false;
}

static void greet(pb_value head) {
    uint64_t n, window = 0, calls = 0;
    bool ours = false;
    for (pb_value it = {0}, list = pb_field(head, "versions"); (it = pb_next(list, it)).len;)
        ours |= pb_as_uint(it, UINT16_MAX, &n) && n == 1;
    if (!ours) stop("version_unsupported");
    pb_value limits = pb_field(head, "limits");
    pb_as_uint(pb_field(limits, "frame"), UINT32_MAX, &self.frame_max);
    pb_as_uint(pb_field(limits, "window"), UINT32_MAX, &window);
    pb_as_uint(pb_field(limits, "calls"), UINT16_MAX, &calls);
    if (self.frame_max < 65536 || window < 16384 || calls < 1) stop("protocol_error"); /* R-HS-06 */
    self.async = lists(pb_field(head, "features"), "async");
    pb_buffer us = {0}, manifest = {0};
    pb_map(&us, 4);
    pb_text(&us, "version"), pb_uint(&us, 1);
    pb_text(&us, "features"), pb_array(&us, self.async);
    if (self.async) pb_text(&us, "async");
    pb_text(&us, "limits"), pb_map(&us, 3);
    pb_text(&us, "frame"), pb_uint(&us, FRAME_MAX);
    pb_text(&us, "window"), pb_uint(&us, WINDOW);
    pb_text(&us, "calls"), pb_uint(&us, self.async ? CALLS : 1);
    pb_text(&us, "plugin"), pb_map(&us, 2);
    pb_text(&us, "name"), pb_text(&us, self.plugin->name);
    pb_text(&us, "version"), pb_text(&us, self.plugin->version);
    self.plugin->manifest(&manifest);
    pthread_mutex_lock(&self.lock);
    send(HELLO, 0, &us, manifest.at, manifest.len, PLAIN);
    pthread_mutex_unlock(&self.lock);
    pb_free(&us), pb_free(&manifest);
    self.greeted = true;
}

/* A frame whose bytes are right: what it means now. The lock is held but for HELLO. */
static void about_calls(uint8_t kind, uint32_t id, pb_value head, const uint8_t *body, size_t body_len) {
    const char *wrong = NULL;
    bool in = false, closed = id <= self.highest;
    pb_call *open = NULL;
    for (pb_call *it = self.calls; it; it = it->next)
        if (!it->answered && it->id == id) open = it;
    if (id == 0) wrong = "bad_id"; /* R-CA-12, R-CA-02 */
    else if (kind == CALL && (id % 2 == 0 || closed)) wrong = "bad_id";
    else if (kind == ITEM || kind == CREDIT) wrong = "bad_state"; /* R-CA-11: we have neither feature */
    else if (kind == CALL && pb_as_bool(pb_field(head, "in"), &in) && in) wrong = "bad_state"; /* R-ST-16 */
    else if (kind == CANCEL && id % 2 == 0) wrong = "bad_state"; /* of a call of ours, and we make none */
    else if (kind == END && (id % 2 == 0 || !closed)) wrong = "bad_id";
    else if (kind == END && open) wrong = "bad_state";
    if (wrong) {
        pthread_mutex_unlock(&self.lock);
        stop(wrong);
    }
    if (kind == CALL) {
        self.highest = id;
        admit(id, head, body, body_len);
    } else if (kind == CANCEL && open) {
        open->cancelled = true;
        pthread_cond_broadcast(&self.changed);
    }
}

static void take(uint8_t kind, uint32_t id, pb_value head, const uint8_t *body, size_t body_len) {
    if (kind <= PONG && id) stop("protocol_error"); /* R-FR-09 */
    if (!is_head(head.at, head.len) || !fits(head, fields_of(kind))) stop("protocol_error");
    if (kind == PING && 64 < body_len) stop("protocol_error");
    if (kind == CLOSE) leave(pb_is_text(pb_field(head, "code"), "ok") ? 0 : 1);
    if ((kind == HELLO) == self.greeted) stop("bad_state"); /* R-HS-03, R-HS-07 */
    if (kind == HELLO) {
        greet(head);
        return;
    }
    if (kind == PONG || kind == NOTE) return;
    pthread_mutex_lock(&self.lock);
    if (kind == PING) {
        pb_buffer empty = {0};
        pb_map(&empty, 0);
        send(PONG, 0, &empty, body, body_len, OWED);
        pb_free(&empty);
        calm();
    } else {
        about_calls(kind, id, head, body, body_len);
    }
    pthread_mutex_unlock(&self.lock);
}

/* The frame that these bytes begin with, if it is there whole: its size; else 0. The order is that of R-FR-15. */
static size_t cut(const uint8_t *at, size_t len) {
    if (len && at[0] != 0xc1) stop("protocol_error");
    if (len < HEADER) return 0;
    uint8_t kind = at[1];
    size_t head_len = big_endian(at + 2, 2), body_len = big_endian(at + 8, 4);
    uint64_t from = body_at(head_len, body_len), size = from + body_len;
    if ((self.greeted || kind == HELLO ? (uint64_t)FRAME_MAX : BEFORE_HELLO) < size) stop("frame_too_large");
    bool known = fields_of(kind) != NULL;
    if (!known && kind < 0x80) stop("unsupported_frame");
    if (head_len == 0) stop("protocol_error");
    if (len < size) return 0;
    for (size_t i = HEADER + head_len; i < from; i++)
        if (at[i]) stop("protocol_error");
    if (known) {
        pb_value head = {at + HEADER, head_len};
        take(kind, (uint32_t)big_endian(at + 4, 4), head, at + from, body_len);
    }
    return size;
}

static void on_signal(int number) {
    (void)number;
    int error = errno;
    ssize_t n = write(self.wake[1], "", 1);
    (void)n, errno = error;
}

_Noreturn void pb_serve(const pb_plugin *plugin) {
    const char *protocol = getenv("PLUGBAY_PROTOCOL");
    if (!protocol || strcmp(protocol, "1") != 0) { /* R-PR-01 */
        fprintf(stderr, "%s\n", plugin->hint);
        exit(2);
    }
    self.plugin = plugin, self.last = &self.first;
    /* The pipes become ours alone; a stray print lands in the log (R-PR-07). */
    self.in = fcntl(0, F_DUPFD_CLOEXEC, 3), self.out = fcntl(1, F_DUPFD_CLOEXEC, 3);
    int null = open("/dev/null", O_RDONLY);
    if (self.in < 0 || self.out < 0 || null < 0 || pipe(self.wake)) exit(70);
    dup2(2, 1), dup2(null, 0), close(null);
    for (int i = 0; i < 2; i++) fcntl(self.wake[i], F_SETFD, FD_CLOEXEC), fcntl(self.wake[i], F_SETFL, O_NONBLOCK);
    signal(SIGPIPE, SIG_IGN);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESTART}, NULL);
    pthread_mutex_init(&self.lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&self.changed, &clock), pthread_cond_init(&self.to_write, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, writer, NULL)) exit(70);

    pb_buffer input = {0};
    size_t begin = 0; /* of what has not been taken */
    for (;;) {
        struct pollfd ready[2] = {{self.in, POLLIN, 0}, {self.wake[0], POLLIN, 0}};
        if (poll(ready, 2, -1) < 0) continue;
        if (ready[1].revents) leave(0); /* SIGTERM */
        uint8_t chunk[16384];
        ssize_t n = read(self.in, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (begin < input.len) stop("protocol_error"); /* R-FR-11 */
            leave(0);                                       /* R-PR-12 */
        }
        pb_raw(&input, chunk, (size_t)n); /* it grows with what has come, never with what was declared (R-FR-06) */
        for (size_t size; (size = cut(input.at + begin, input.len - begin));) begin += size;
        if (begin) memmove(input.at, input.at + begin, input.len - begin);
        input.len -= begin, begin = 0;
    }
}

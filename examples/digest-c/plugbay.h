/* plugbay protocol 1 for C, levels L0 and L1: MessagePack, frames, the gate, calls in threads.
 *
 * Written from sdk-spec/ alone. A plugin fills in a pb_plugin and calls pb_serve(); its methods run in a
 * thread each and answer with pb_ok() or pb_err(). Ids such as R-FR-03 are rules of the spec.
 */
#ifndef PLUGBAY_H
#define PLUGBAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- Reading: one MessagePack value, as it stands in a head or body that has been checked. ------------- */

typedef struct {
    const uint8_t *at;
    size_t len; /* 0: absent; a field with nil is absent too (R-HD-04) */
} pb_value;

typedef enum { PB_ABSENT, PB_NIL, PB_BOOL, PB_INT, PB_FLOAT, PB_STR, PB_BIN, PB_ARRAY, PB_MAP } pb_type;

pb_type pb_typeof(pb_value value);
/* The field of a map, or absent. Of a key that stands twice the last counts (R-HD-20). */
pb_value pb_field(pb_value map, const char *name);
/* How many items an array has, or pairs a map; 0 for anything else. */
size_t pb_count(pb_value value);
/* Walks the items of an array, or keys and values of a map in turn: call with the last one, first with absent. */
pb_value pb_next(pb_value container, pb_value last);
bool pb_as_uint(pb_value value, uint64_t max, uint64_t *out);
bool pb_as_bool(pb_value value, bool *out);
/* The bytes of a string or binary; NULL for anything else. They do not end with NUL. */
const char *pb_as_text(pb_value value, size_t *len);
bool pb_is_text(pb_value value, const char *text);
/* Whether this is exactly one value that may stand in a body (R-HD-10, R-HD-11). */
bool pb_is_body(const uint8_t *at, size_t len);

/* --- Writing: a buffer that grows. Out of memory is the end of the process. ---------------------------- */

typedef struct {
    uint8_t *at;
    size_t len, room;
} pb_buffer;

void pb_raw(pb_buffer *to, const void *bytes, size_t len);
void pb_map(pb_buffer *to, size_t pairs);
void pb_array(pb_buffer *to, size_t items);
void pb_text(pb_buffer *to, const char *text);
void pb_str(pb_buffer *to, const char *text, size_t len);
void pb_uint(pb_buffer *to, uint64_t number);
void pb_bool(pb_buffer *to, bool value);
void pb_copy(pb_buffer *to, pb_value value);
void pb_free(pb_buffer *buffer);

/* --- Calls ------------------------------------------------------------------------------------------- */

typedef struct pb_call pb_call;

typedef struct {
    const char *name;
    /* Whether the body is what the method takes; else pb.bad_body. Runs before the call does, so it must not wait. */
    bool (*takes)(pb_value body);
    void (*run)(pb_call *call);
} pb_method;

typedef enum { PB_DONE, PB_CANCELLED, PB_EXPIRED } pb_waited;

pb_value pb_head(const pb_call *call);
/* The body; the empty map if there is none (R-HD-16). */
pb_value pb_body(const pb_call *call);
/* Whether it came with a body at all. */
bool pb_has_body(const pb_call *call);
/* Waits, and tells of its progress as `idle` wants; ends early if the call is cancelled or its deadline spent. */
pb_waited pb_wait(pb_call *call, uint64_t ms);
/* Answers a call: with a result that may be empty, or with an error. The first answer counts. A function that
 * returns without one has failed in a way it did not foresee: `internal` (R-CA-08). */
void pb_ok(pb_call *call, const pb_buffer *result);
void pb_err(pb_call *call, const char *code, const char *reason, const char *retry, const char *msg);
/* The same with `err` and body as MessagePack. */
void pb_err_raw(pb_call *call, const pb_buffer *err, const pb_buffer *body);
/* Answers as a wait that ended early asks for. */
void pb_gave_up(pb_call *call, pb_waited why);
/* NOTE about this call, or about the plugin if call is NULL. May be lost. */
void pb_note(pb_call *call, const pb_buffer *head, const pb_buffer *body);

/* --- The plugin --------------------------------------------------------------------------------------- */

typedef struct {
    const char *name, *version;
    const char *hint; /* said to whoever starts it by hand */
    const pb_method *methods;
    size_t method_count;
    void (*manifest)(pb_buffer *to);
    /* Takes the body of plugin.activate, answers the call; true if with pb_ok(). NULL: there is nothing to do. */
    bool (*activate)(pb_call *call);
    /* Whether a method is there in this activation. NULL: all are. */
    bool (*offers)(const char *method);
    /* Disposes of everything that was opened since activation. Also before the process ends. NULL: nothing. */
    void (*dispose)(void);
} pb_plugin;

/* Does not return. */
_Noreturn void pb_serve(const pb_plugin *plugin);
/* How many calls run now, lifecycle steps left out. */
size_t pb_running(void);
/* In a child process that was forked: closes the pipes, so that it holds no frame (R-PR-08). */
void pb_in_child(void);

#endif

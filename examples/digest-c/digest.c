/* A plugin with two tools: sha256 and base64. */
#include <stdlib.h>
#include <string.h>

#include "plugbay.h"
#include "sha256.h"

static void tool(pb_buffer *to, const char *name, const char *description, const char *options) {
    pb_map(to, 6);
    pb_text(to, "kind"), pb_text(to, "tool");
    pb_text(to, "name"), pb_text(to, name);
    pb_text(to, "description"), pb_text(to, description);
    pb_text(to, "effect"), pb_text(to, "read");
    pb_text(to, "idempotent"), pb_bool(to, true);
    pb_text(to, "input_schema"), pb_map(to, 4);
    pb_text(to, "type"), pb_text(to, "object");
    pb_text(to, "required"), pb_array(to, 1), pb_text(to, "text");
    pb_text(to, "additionalProperties"), pb_bool(to, false);
    pb_text(to, "properties"), pb_map(to, options ? 2 : 1);
    pb_text(to, "text"), pb_map(to, 1), pb_text(to, "type"), pb_text(to, "string");
    if (options) pb_text(to, options), pb_map(to, 1), pb_text(to, "type"), pb_text(to, "boolean");
}

static void manifest(pb_buffer *to) {
    pb_map(to, 2);
    pb_text(to, "provides"), pb_array(to, 2);
    tool(to, "sha256", "The SHA-256 of a text, as 64 hex digits.", NULL);
    tool(to, "base64", "A text as base64, or with decode true the text that base64 stands for.", "decode");
    pb_text(to, "wants"), pb_array(to, 0);
}

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void encode(pb_buffer *out, const char *text, size_t len) {
    const unsigned char *at = (const unsigned char *)text;
    for (size_t i = 0; i < len; i += 3) {
        size_t n = len - i < 3 ? len - i : 3;
        unsigned bits = (unsigned)at[i] << 16 | (1 < n ? at[i + 1] << 8 : 0) | (2 < n ? at[i + 2] : 0);
        char four[4] = {DIGITS[bits >> 18], DIGITS[bits >> 12 & 63], '=', '='};
        if (1 < n) four[2] = DIGITS[bits >> 6 & 63];
        if (2 < n) four[3] = DIGITS[bits & 63];
        pb_raw(out, four, 4);
    }
}

/* False if it is no base64 with its padding. */
static bool decode(pb_buffer *out, const char *text, size_t len) {
    if (len % 4) return false;
    for (size_t i = 0; i < len; i += 4) {
        size_t pad = i + 4 < len ? 0 : (text[i + 3] == '=') + (text[i + 2] == '=' && text[i + 3] == '=');
        unsigned bits = 0;
        for (size_t k = 0; k < 4; k++) {
            const char *digit = k < 4 - pad ? memchr(DIGITS, text[i + k], 64) : DIGITS;
            if (!digit) return false;
            bits = bits << 6 | (unsigned)(digit - DIGITS);
        }
        char three[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        if (bits & ((1u << 8 * pad) - 1)) return false; /* what does not count must be zero */
        pb_raw(out, three, 3 - pad);
    }
    return true;
}

/* END ok: one block of text, and whether the work failed. */
static void say(pb_call *call, const char *text, size_t len, bool failed) {
    pb_buffer result = {0};
    pb_map(&result, failed ? 2 : 1);
    pb_text(&result, "content"), pb_array(&result, 1), pb_map(&result, 2);
    pb_text(&result, "type"), pb_text(&result, "text");
    pb_text(&result, "text"), pb_str(&result, text, len);
    if (failed) pb_text(&result, "is_error"), pb_bool(&result, true);
    pb_ok(call, &result);
    pb_free(&result);
}

static void run(pb_call *call) {
    pb_value name = pb_field(pb_body(call), "name"), args = pb_field(pb_body(call), "args");
    pb_value text = pb_field(args, "text"), wanted = pb_field(args, "decode");
    bool hash = pb_is_text(name, "sha256"), decoding = false;
    if (!hash && !pb_is_text(name, "base64")) {
        pb_err(call, "not_found", "pb.unknown_tool", "no", "no such tool");
        return;
    }
    size_t len = 0;
    const char *at = pb_typeof(text) == PB_STR ? pb_as_text(text, &len) : NULL;
    size_t known = 1 + (wanted.len != 0);
    if (!at || pb_count(args) != known || (wanted.len && (hash || !pb_as_bool(wanted, &decoding)))) {
        pb_err(call, "invalid_argument", "pb.bad_args", "no", "expected text, and for base64 decode");
        return;
    }
    pb_buffer out = {0};
    if (hash) {
        char hex[65];
        sha256_hex(at, len, hex);
        say(call, hex, 64, false);
    } else if (!decoding) {
        encode(&out, at, len);
        say(call, (const char *)out.at, out.len, false);
    } else {
        /* What it stands for must be text: a result is what a model reads. */
        pb_buffer check = {0};
        bool fine = decode(&out, at, len);
        if (fine) pb_str(&check, (const char *)out.at, out.len);
        fine = fine && pb_is_body(check.at, check.len);
        static const char WRONG[] = "that is not the base64 of a text";
        say(call, fine ? (const char *)out.at : WRONG, fine ? out.len : strlen(WRONG), !fine);
        pb_free(&check);
    }
    pb_free(&out);
}

static bool takes_call(pb_value body) {
    pb_type ctx = pb_typeof(pb_field(body, "ctx"));
    return pb_typeof(body) == PB_MAP && pb_typeof(pb_field(body, "name")) == PB_STR &&
           (ctx == PB_ABSENT || ctx == PB_MAP);
}

static const pb_method METHODS[] = {{"tool.call", takes_call, run}};

int main(void) {
    static const pb_plugin plugin = {
        .name = "example.digest", .version = "1.0.0", .methods = METHODS, .method_count = 1, .manifest = manifest,
        .hint = "This is a plugin. Try: plugbay call --plugin ./digest sha256 text=abc",
    };
    pb_serve(&plugin);
}

/* Selvedge: language models at the edge. The C interface; docs/c.md is its guide.
 *
 * Every call that can fail returns a status and leaves a sentence in slv_last_error(). Handles are pointers: use after
 * they were freed is the caller's error. NULL where a pointer is needed is an error and does nothing.
 *
 * Made from the library's sources: change those. */

#ifndef SELVEDGE_H
#define SELVEDGE_H

#include <stddef.h>
#include <stdint.h>

/**
 * How a call ended. The band tells what to do: 0x0x look at the system, 0x1x correct the input, 0x2x free or ask for less,
 * 0x3x choose another backend or file. Numbers never change; new ones may come, in these bands.
 */
typedef enum {
  /**
   * Done.
   */
  SLV_STATUS_OK = 0,
  /**
   * A fault of the library itself.
   */
  SLV_STATUS_INTERNAL = 1,
  /**
   * The system refused: a file, a thread.
   */
  SLV_STATUS_SYSTEM = 2,
  /**
   * The caller asked for it, by its token or by its answer to an event. Whatever was in use is as valid as before.
   */
  SLV_STATUS_CANCELLED = 3,
  /**
   * The handle is in use, by another thread or by the call that this one was made from.
   */
  SLV_STATUS_BUSY = 4,
  /**
   * A file changed while it was in use: close the model and open it again.
   */
  SLV_STATUS_CHANGED = 5,
  /**
   * A pointer that must not be NULL is.
   */
  SLV_STATUS_NULL = 16,
  /**
   * An argument outside its range.
   */
  SLV_STATUS_ARGUMENT = 17,
  /**
   * A text that isn't UTF-8.
   */
  SLV_STATUS_UTF8 = 18,
  /**
   * An option that isn't there, of another type, or outside its range.
   */
  SLV_STATUS_OPTION = 19,
  /**
   * A text that isn't the JSON that is expected.
   */
  SLV_STATUS_JSON = 20,
  /**
   * The file is no model, or a damaged one.
   */
  SLV_STATUS_FORMAT = 21,
  /**
   * The model needs what this version hasn't.
   */
  SLV_STATUS_UNSUPPORTED = 22,
  /**
   * The chat template refuses the conversation, or can't be used.
   */
  SLV_STATUS_TEMPLATE = 23,
  /**
   * A buffer that is too small; what it must hold was stored.
   */
  SLV_STATUS_BUFFER = 24,
  /**
   * A prompt that is empty or longer than the context.
   */
  SLV_STATUS_PROMPT = 25,
  /**
   * The plan exceeds the budget, or what the system has free; the message says what would fit.
   */
  SLV_STATUS_BUDGET = 32,
  /**
   * The system gave no memory.
   */
  SLV_STATUS_MEMORY = 33,
  /**
   * The context is full.
   */
  SLV_STATUS_CONTEXT = 34,
  /**
   * The backend failed, or there is none of that name.
   */
  SLV_STATUS_BACKEND = 48,
  /**
   * A number that is infinite or undefined: the weights are damaged.
   */
  SLV_STATUS_DAMAGED = 49,
} slv_status;

/**
 * What an event tells of.
 */
typedef enum {
  /**
   * No event: what a NULL is.
   */
  SLV_EVENT_KIND_NONE = 0,
  /**
   * A model is being opened: `slv_event_stage`, `slv_event_done` of `slv_event_total` bytes.
   */
  SLV_EVENT_KIND_LOAD = 1,
  /**
   * A prompt is being computed: `slv_event_done` of `slv_event_total` positions.
   */
  SLV_EVENT_KIND_PREFILL = 2,
  /**
   * A token of the reply: `slv_event_token`, `slv_event_logprob`, alternatives, and the text that can be shown now.
   */
  SLV_EVENT_KIND_TOKEN = 3,
  /**
   * Text that was held back, at the end of a reply.
   */
  SLV_EVENT_KIND_TEXT = 4,
} slv_event_kind;

/**
 * Ends calls that it was given to, from any thread, within the time of a layer. One token may serve any number of calls.
 */
typedef struct slv_cancel slv_cancel;

/**
 * An event; valid during the call that is told of it.
 */
typedef struct slv_event slv_event;

/**
 * A model: immutable, for any number of threads at once. What is made from it keeps what it needs of it.
 */
typedef struct slv_model slv_model;

/**
 * Options of a call: for a model those of `slv_options_model`, for a reply those of `slv_options_generate`.
 */
typedef struct slv_options slv_options;

/**
 * A conversation on a model. One call at a time, from any thread; a second one at the same time answers `SLV_STATUS_BUSY`.
 */
typedef struct slv_session slv_session;

/**
 * Where a model's bytes are: a path, a part of an open file, memory. It may be used for any number of calls and freed after
 * them: what they opened keeps what it needs.
 */
typedef struct slv_source slv_source;

/**
 * The words of a model: its tokenizer and its chat templates. Immutable, for any number of threads at once.
 */
typedef struct slv_text slv_text;

/**
 * Told of events, on the thread that made the call. An answer other than 0 ends the call with `SLV_STATUS_CANCELLED`. It must
 * return: no C++ exception may leave it, and no longjmp. It may make any call of this library; one on the handle that the
 * event comes from answers `SLV_STATUS_BUSY`, apart from freeing it, which is done when the call ends.
 */
typedef int (*slv_event_fn)(const slv_event *event, void *user);

/**
 * Told of what went otherwise than expected, a sentence in UTF-8 each, on the thread that made the call.
 */
typedef void (*slv_log_fn)(const char *message, void *user);

/**
 * Told when nothing uses the bytes any more, once, on any thread.
 */
typedef void (*slv_release_fn)(void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes a token.
 */
slv_status slv_cancel_new(slv_cancel **out);

/**
 * Cancels: harmless before a call begins, twice, and after it ended. From any thread.
 */
slv_status slv_cancel_cancel(const slv_cancel *cancel);

/**
 * Takes a cancel back, so that the token can serve further calls.
 */
slv_status slv_cancel_reset(const slv_cancel *cancel);

/**
 * Frees a token; calls that use it go on. NULL is allowed.
 */
void slv_cancel_free(slv_cancel *cancel);

/**
 * The name of a status in lower case, "unknown" for a number that is none. Never freed.
 */
const char *slv_status_name(int32_t status);

/**
 * What it tells of.
 */
slv_event_kind slv_event_kind_of(const slv_event *event);

/**
 * What a load is at: "tokenizer", "hash", "pack", "weights", "ready"; others may come. Empty for other events.
 */
const char *slv_event_stage(const slv_event *event);

/**
 * Bytes of a stage, or positions of a prompt, that are done.
 */
uint64_t slv_event_done(const slv_event *event);

/**
 * Bytes of a stage, or positions of a prompt, in all.
 */
uint64_t slv_event_total(const slv_event *event);

/**
 * Text that can be shown now: whole characters of UTF-8, possibly none, with a NUL after them. `len`, which may be NULL, is
 * told their bytes: a model can write a NUL too.
 */
const char *slv_event_text(const slv_event *event,
                           size_t *len);

/**
 * The token's id.
 */
uint32_t slv_event_token(const slv_event *event);

/**
 * The token's natural log-probability before any sampler changed the logits; not a number where the options ask for none.
 */
float slv_event_logprob(const slv_event *event);

/**
 * Number of alternatives, as many as the option `top_logprobs` asks for.
 */
size_t slv_event_n_top(const slv_event *event);

/**
 * An alternative, best first: its id is returned, its log-probability stored where `logprob` isn't NULL. One that isn't
 * there is `UINT32_MAX`.
 */
uint32_t slv_event_top(const slv_event *event, size_t index, float *logprob);

/**
 * The sentence of the last call that failed on this thread, empty where none did. Valid until the next call that fails on it.
 */
const char *slv_last_error(void);

/**
 * What opening would take, as a JSON object: "mapped", "anonymous" with "kv", "arena", "pack", "tokenizer", "other", "gpu", all
 * bytes; "n_ctx", "max_ctx", "weights", "weights_why", "segments". Nothing of the weights is read. A plan that exceeds its
 * budget is given all the same, with the status `SLV_STATUS_BUDGET`. `options` may be NULL.
 */
slv_status slv_model_plan(const slv_source *source,
                          const slv_options *options,
                          char **out);

/**
 * Opens a model. `options`, `cancel` and `on_event` may be NULL; `on_event` is told of the stages.
 */
slv_status slv_model_open(const slv_source *source,
                          const slv_options *options,
                          const slv_cancel *cancel,
                          slv_event_fn on_event,
                          void *user,
                          slv_model **out);

/**
 * What a model is, as a JSON object: "architecture", "n_ctx", "n_ctx_train", "n_vocab", "backends", "notes", "plan".
 */
slv_status slv_model_info(const slv_model *model, char **out);

/**
 * Positions that a session on the model may reach; 0 for NULL.
 */
size_t slv_model_n_ctx(const slv_model *model);

/**
 * Tokens in the model's vocabulary; 0 for NULL.
 */
size_t slv_model_n_vocab(const slv_model *model);

/**
 * Frees a model; sessions and texts made from it go on. NULL is allowed.
 */
void slv_model_free(slv_model *model);

/**
 * Options of a model, all at their defaults. Keys: "backend" (text), "budget" (bytes), "chunk", "cpu" (adds a processor to run
 * on), "duty" (percent), "isa" (text), "kv" ("f16", "f32", "q8_0"), "n_ctx", "nice", "pack_dir" (text), "pack_limit" (bytes),
 * "threads" (a number, or the text "auto"), "validate" (0 or 1), "weights" ("auto", "resident", "mapped").
 */
slv_status slv_options_model(slv_options **out);

/**
 * Options of a reply, all at their defaults. Keys: "max_tokens", "stop" (adds a text), "ignore_stop_ids", "logprobs",
 * "top_logprobs", "overflow" ("stop", "shift"), "n_keep", "n_discard", "seed", "temperature", "top_k", "top_p", "min_p",
 * "typical_p", "xtc_probability", "xtc_threshold", "repeat_penalty", "frequency_penalty", "presence_penalty",
 * "penalty_last_n", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_last_n", "dry_breaker" (adds a text),
 * "mirostat_tau", "mirostat_eta", "samplers" (names with commas between them).
 */
slv_status slv_options_generate(slv_options **out);

/**
 * Sets an option to an integer, or 0 and 1 for no and yes. Numbers are compared with their ranges when they are used.
 */
slv_status slv_options_set_int(slv_options *options, const char *key, int64_t value);

/**
 * Sets an option to a number.
 */
slv_status slv_options_set_float(slv_options *options, const char *key, double value);

/**
 * Sets an option to a text, or adds one where the option is a list.
 */
slv_status slv_options_set_text(slv_options *options, const char *key, const char *value);

/**
 * Adds a number to a token's logit in a reply: -100 bans it, 100 forces it.
 */
slv_status slv_options_add_logit_bias(slv_options *options, uint32_t token, float bias);

/**
 * Sets who is told of what goes otherwise than expected: a full disk, packed weights that had to be made again.
 */
slv_status slv_options_set_log(slv_options *options, slv_log_fn on_log, void *user);

/**
 * Frees options; calls that they were given to go on. NULL is allowed.
 */
void slv_options_free(slv_options *options);

/**
 * Makes a session. It keeps what it needs of the model, which may be freed before it.
 */
slv_status slv_session_new(const slv_model *model, slv_session **out);

/**
 * Makes a reply to a prompt of `n` tokens. Their common prefix with what the session holds isn't computed again. `options`,
 * `cancel` and `on_event` may be NULL. A reply that is cancelled leaves the session as valid as any other.
 */
slv_status slv_session_generate(slv_session *session,
                                const uint32_t *ids,
                                size_t n,
                                const slv_options *options,
                                const slv_cancel *cancel,
                                slv_event_fn on_event,
                                void *user);

/**
 * Makes a reply to a conversation, rendered by the file's chat template: as `slv_text_chat` and `slv_session_generate`.
 */
slv_status slv_session_chat(slv_session *session,
                            const char *messages,
                            const slv_options *options,
                            const slv_cancel *cancel,
                            slv_event_fn on_event,
                            void *user);

/**
 * Natural log-probabilities of tokens, each after those before it, from an empty session: `logprobs` gets `n` numbers, the first
 * not a number. `cancel` may be NULL.
 */
slv_status slv_session_score(slv_session *session,
                             const uint32_t *ids,
                             size_t n,
                             const slv_cancel *cancel,
                             double *logprobs);

/**
 * Positions that the session holds, stored in `n`.
 */
slv_status slv_session_len(const slv_session *session, size_t *n);

/**
 * Keeps the first `to` positions and forgets the others. `kept`, which may be NULL, is told how many are kept: none where a
 * window of attention was lost.
 */
slv_status slv_session_keep(slv_session *session,
                            size_t to,
                            size_t *kept);

/**
 * What the last reply took, as a JSON object: "finish" ("stop", "length", "context", "cancelled"), "prompt_tokens",
 * "reused_tokens", "n_tokens", "first_token_ms", "decode_ms", "n_decode_steps", "seed". "null" where there is none.
 */
slv_status slv_session_stats(const slv_session *session, char **out);

/**
 * The sentence of the session's last call, empty where it succeeded. Valid until the next call on the session; empty too while
 * one runs.
 */
const char *slv_session_error(const slv_session *session);

/**
 * Frees a session; one that a call uses is freed when that call ends, which a callback may ask for. NULL is allowed.
 */
void slv_session_free(slv_session *session);

/**
 * A model's file, or the first file of a split set, by its path in UTF-8. Nothing is opened yet.
 */
slv_status slv_source_path(const char *path, slv_source **out);

/**
 * A part of an open file: `n_bytes` from byte `start` on, to the end of the file where `n_bytes` is 0. The descriptor is
 * duplicated: the caller may close its own. Android's assets come this way.
 */
slv_status slv_source_fd(int fd,
                         uint64_t start,
                         uint64_t n_bytes,
                         slv_source **out);

/**
 * Bytes in memory, which stay as they are until `release` is called; a `release` of NULL: until everything that was opened
 * from them is freed. Where the call fails, `release` isn't called.
 */
slv_status slv_source_bytes(const void *data,
                            size_t n_bytes,
                            slv_release_fn release,
                            void *user,
                            slv_source **out);

/**
 * Frees a source. NULL is allowed.
 */
void slv_source_free(slv_source *source);

/**
 * Opens the words of a file, also of one that holds nothing else.
 */
slv_status slv_text_open(const slv_source *source, slv_text **out);

/**
 * The words of an open model, which are shared with it.
 */
slv_status slv_text_of_model(const slv_model *model, slv_text **out);

/**
 * Tokens in the vocabulary; 0 for NULL.
 */
size_t slv_text_n_vocab(const slv_text *text);

/**
 * Tokens of a text. `add_special`: whether the start and end tokens that the model wants are added; `parse_special`: whether
 * control tokens that the text spells are meant. Never set it for what a person wrote. `n` is told how many tokens there are;
 * where they are more than `capacity`, the status is `SLV_STATUS_BUFFER` and nothing else is stored.
 */
slv_status slv_text_tokenize(const slv_text *text,
                             const char *bytes,
                             size_t len,
                             int add_special,
                             int parse_special,
                             uint32_t *ids,
                             size_t capacity,
                             size_t *n);

/**
 * Text of tokens, as a new string; bytes that are no UTF-8 become replacement characters. `render_special`: whether control
 * tokens are shown as they are spelled. A NUL becomes a replacement character too.
 */
slv_status slv_text_detokenize(const slv_text *text,
                               const uint32_t *ids,
                               size_t n,
                               int render_special,
                               char **out);

/**
 * The text of a conversation by the file's chat template, as a new string. `messages`: a JSON array of objects with "role" and
 * "content"; `tools`: a JSON array of tool definitions, or NULL; `open_turn`: whether the assistant's turn is opened at the
 * end.
 */
slv_status slv_text_render(const slv_text *text,
                           const char *messages,
                           const char *tools,
                           int open_turn,
                           char **out);

/**
 * Tokens of a conversation by the file's chat template: control tokens are found in the template's own words, never in what
 * people and tools wrote. Otherwise as `slv_text_render` and `slv_text_tokenize`.
 */
slv_status slv_text_chat(const slv_text *text,
                         const char *messages,
                         const char *tools,
                         int open_turn,
                         uint32_t *ids,
                         size_t capacity,
                         size_t *n);

/**
 * Whether a token ends a turn.
 */
int slv_text_is_stop(const slv_text *text, uint32_t token);

/**
 * Frees it. NULL is allowed.
 */
void slv_text_free(slv_text *text);

/**
 * Frees a text that the library gave away; NULL is allowed.
 */
void slv_string_free(char *text);

/**
 * The version of this interface: it rises with every change that a program built for an older one would notice. Programs
 * built for 0 work with any library that says 0.
 */
uint32_t slv_abi_version(void);

/**
 * The library's version, as "0.1.0". Never freed.
 */
const char *slv_version(void);

/**
 * How the library was built, as a JSON object: version, arithmetic, system, backends. Never freed.
 */
const char *slv_build_info(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SELVEDGE_H */

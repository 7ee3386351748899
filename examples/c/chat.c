/* A chat on the terminal.
 *
 *   cc chat.c $(pkg-config --cflags --libs selvedge) -o chat
 *   ./chat model.gguf              talks, line by line, until the end of the input
 *   ./chat model.gguf 64 < lines   at most 64 tokens a reply
 */
#include <selvedge.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with what the library says. */
static void must(slv_status status, const char *what) {
  if (status != SLV_STATUS_OK) {
    fprintf(stderr, "cannot %s: %s (%s)\n", what, slv_last_error(), slv_status_name((int)status));
    exit(1);
  }
}

/* A text that grows. */
typedef struct {
  char *bytes;
  size_t len, capacity;
} text;

static void add(text *to, const char *bytes, size_t len) {
  if (to->len + len + 1 > to->capacity) {
    char *grown;
    to->capacity = 2 * to->capacity + len + 1;
    grown = realloc(to->bytes, to->capacity);
    if (grown == NULL) {
      fputs("out of memory\n", stderr);
      exit(1);
    }
    to->bytes = grown;
  }
  memcpy(to->bytes + to->len, bytes, len);
  to->len += len;
  to->bytes[to->len] = 0;
}

/* Adds a message to an open JSON array. */
static void add_message(text *to, const char *role, const char *content, size_t len) {
  char piece[128];
  size_t i;
  snprintf(piece, sizeof piece, "%s{\"role\":\"%s\",\"content\":\"", to->len > 1 ? "," : "", role);
  add(to, piece, strlen(piece));
  for (i = 0; i < len; i++) {
    unsigned char byte = (unsigned char)content[i];
    if (byte == '"' || byte == '\\') {
      piece[0] = '\\';
      piece[1] = (char)byte;
      add(to, piece, 2);
    } else if (byte < 0x20) {
      snprintf(piece, sizeof piece, "\\u%04x", byte);
      add(to, piece, 6);
    } else {
      add(to, content + i, 1);
    }
  }
  add(to, "\"}", 2);
}

/* Shows a reply as it comes, and keeps it. */
static int on_event(const slv_event *event, void *user) {
  size_t len;
  const char *piece = slv_event_text(event, &len);
  fwrite(piece, 1, len, stdout);
  fflush(stdout);
  add(user, piece, len);
  return 0;
}

int main(int argc, char **argv) {
  slv_source *source;
  slv_options *model_options, *reply_options;
  slv_model *model;
  slv_session *session;
  text messages = {NULL, 0, 0};
  char line[4096];

  if (argc < 2) {
    fprintf(stderr, "usage: %s MODEL.gguf [MAX_TOKENS]\n", argv[0]);
    return 2;
  }
  must(slv_source_path(argv[1], &source), "name the model");
  must(slv_options_model(&model_options), "make options");
  must(slv_options_set_int(model_options, "n_ctx", 2048), "set the context");
  must(slv_model_open(source, model_options, NULL, NULL, NULL, &model), "open the model");
  slv_options_free(model_options);
  slv_source_free(source);
  must(slv_session_new(model, &session), "make a session");
  slv_model_free(model); /* The session keeps what it needs. */
  must(slv_options_generate(&reply_options), "make options");
  must(slv_options_set_int(reply_options, "max_tokens", argc > 2 ? atoi(argv[2]) : 256), "bound the reply");
  must(slv_options_set_int(reply_options, "seed", 1), "set the seed");

  add(&messages, "[", 1);
  for (;;) {
    text reply = {NULL, 0, 0}, request = {NULL, 0, 0};
    slv_status status;
    fputs("> ", stdout);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) {
      break;
    }
    add_message(&messages, "user", line, strcspn(line, "\n"));
    add(&request, messages.bytes, messages.len);
    add(&request, "]", 1);
    add(&reply, "", 0);
    status = slv_session_chat(session, request.bytes, reply_options, NULL, on_event, &reply);
    putchar('\n');
    if (status != SLV_STATUS_OK) {
      fprintf(stderr, "%s\n", slv_session_error(session));
    }
    add_message(&messages, "assistant", reply.bytes, reply.len);
    free(reply.bytes);
    free(request.bytes);
    if (status != SLV_STATUS_OK) {
      break;
    }
  }
  putchar('\n');
  free(messages.bytes);
  slv_options_free(reply_options);
  slv_session_free(session);
  return 0;
}

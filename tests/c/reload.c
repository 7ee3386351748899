/* Opens the library a hundred times, uses it, and closes it: threads end, memory stays. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int status;

static void fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, dlerror());
  exit(1);
}

/* A function of the library; ISO C has no conversion from an object's pointer to a function's. */
static void find(void *library, const char *name, void *place) {
  void *found = dlsym(library, name);
  if (found == NULL) fail(name);
  memcpy(place, &found, sizeof found);
}

static int threads(void) {
  int n = 0;
  DIR *dir = opendir("/proc/self/task");
  struct dirent *entry;
  while (dir != NULL && (entry = readdir(dir)) != NULL) n += entry->d_name[0] != '.';
  if (dir != NULL) closedir(dir);
  return n;
}

static long resident_kib(void) {
  long kib = -1;
  char line[256];
  FILE *file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) sscanf(line, "RssAnon: %ld", &kib);
  if (file != NULL) fclose(file);
  return kib;
}

int main(int argc, char **argv) {
  int i, before = threads();
  long half = 0;
  if (argc < 3) return 2;
  for (i = 0; i < 100; i++) {
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *source, *model, *session;
    status (*source_path)(const char *, void **), (*open)(void *, void *, void *, void *, void *, void **);
    status (*new_session)(void *, void **);
    status (*generate)(void *, const unsigned *, size_t, void *, void *, void *, void *);
    void (*free_source)(void *), (*free_model)(void *), (*free_session)(void *);
    const unsigned ids[] = {1, 5, 9};
    if (library == NULL) fail("dlopen");
    find(library, "slv_source_path", &source_path);
    find(library, "slv_model_open", &open);
    find(library, "slv_session_new", &new_session);
    find(library, "slv_session_generate", &generate);
    find(library, "slv_source_free", &free_source);
    find(library, "slv_model_free", &free_model);
    find(library, "slv_session_free", &free_session);
    if (source_path(argv[2], &source) || open(source, NULL, NULL, NULL, NULL, &model) || new_session(model, &session) ||
        generate(session, ids, 3, NULL, NULL, NULL, NULL)) {
      fprintf(stderr, "a call failed in round %d\n", i);
      return 1;
    }
    free_session(session);
    free_model(model);
    free_source(source);
    if (dlclose(library) != 0) fail("dlclose");
    if (i == 49) half = resident_kib();
  }
  /* A thread that has ended may stand in the list for a moment. */
  for (i = 0; i < 100 && threads() != before; i++) usleep(10000);
  if (threads() != before) {
    fprintf(stderr, "%d threads, %d before\n", threads(), before);
    return 1;
  }
  printf("100 times; anonymous KiB after 50: %ld, after 100: %ld\n", half, resident_kib());
  if (resident_kib() - half > 512) {
    fprintf(stderr, "memory grows\n");
    return 1;
  }
  return 0;
}

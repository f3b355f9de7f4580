/* Makes reads of files below a folder fail or hang, in every process that is started with LD_PRELOAD=this library and
   CHAOS_READS=FILE. While FILE exists it holds a letter, f (fail with EIO) or h (hang until FILE is gone), and the folder.
   Every read that was hit adds that letter to FILE.hits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t (*reader)(int, void *, size_t);
typedef ssize_t (*reader_at)(int, void *, size_t, off_t);

static char fault(int handle, char *hits, size_t room) {
    const char *control = getenv("CHAOS_READS");
    char words[4096], link[64], path[4096];
    if (!control) return 0;
    int file = open(control, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = ((reader)dlsym(RTLD_NEXT, "read"))(file, words, sizeof words - 1);
    close(file);
    if (size < 2) return 0;
    words[size] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || strncmp(path, words + 1, strlen(words + 1))) return 0;
    snprintf(hits, room, "%s.hits", control);
    return words[0];
}

static int refused(int handle) {
    int kept = errno;
    char hits[4096];
    char what = fault(handle, hits, sizeof hits);
    if (what) {
        int file = open(hits, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (file >= 0) {
            if (write(file, &what, 1) != 1) abort();
            close(file);
        }
    }
    while (what == 'h') {
        usleep(50000);
        what = fault(handle, hits, sizeof hits);
    }
    errno = what == 'f' ? EIO : kept;
    return what == 'f';
}

ssize_t read(int handle, void *into, size_t size) {
    if (refused(handle)) return -1;
    return ((reader)dlsym(RTLD_NEXT, "read"))(handle, into, size);
}

ssize_t pread64(int handle, void *into, size_t size, off_t at) {
    if (refused(handle)) return -1;
    return ((reader_at)dlsym(RTLD_NEXT, "pread64"))(handle, into, size, at);
}

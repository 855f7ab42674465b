/* Runs a server and remembers what it has synced, so that the power can be cut afterwards.
 *
 *   powercut SHADOW DATA PROGRAM ARGS...
 *
 * Every fsync and fdatasync of the program (by libc or by a raw system call: a seccomp filter hands both to
 * this parent) copies the file or the folder's list of names, as they are at that moment, into SHADOW. What was
 * never synced is not in SHADOW. After a SIGKILL of the program, SHADOW holds exactly what a disk has to hold.
 *
 *   SHADOW/root          the key of DATA
 *   SHADOW/files/KEY     a file's synced bytes
 *   SHADOW/folders/KEY   a folder's synced names: "TYPE MODE KEY NAME\0" each
 *   SHADOW/pid           the program's process id
 *
 * KEY is inode-birth, so that a reused inode number is another file. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "powercut knows x86_64 and aarch64"
#endif

static const char *shadow;
static char data[4096];

static void die(const char *what) {
    fprintf(stderr, "powercut: %s: %s\n", what, strerror(errno));
    exit(125);
}

static int key_of(int dir, const char *name, char *key, size_t size, struct statx *stx) {
    int flags = AT_SYMLINK_NOFOLLOW | (name[0] ? 0 : AT_EMPTY_PATH);
    if (statx(dir, name, flags, STATX_BASIC_STATS | STATX_BTIME, stx)) return -1;
    snprintf(key, size, "%llu-%lld.%09u", (unsigned long long)stx->stx_ino,
             (long long)stx->stx_btime.tv_sec, stx->stx_btime.tv_nsec);
    return 0;
}

/* Over the old copy in place: each byte is the old durable one or the new one, as on a disk. */
static int keep_file(int fd, const char *key) {
    static char buffer[1 << 20];
    static char old[1 << 20];
    char path[4200];
    snprintf(path, sizeof path, "%s/files/%s", shadow, key);
    int out = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0) return -1;
    off_t at = 0;
    ssize_t count;
    while ((count = pread(fd, buffer, sizeof buffer, at)) > 0) {
        ssize_t had = pread(out, old, (size_t)count, at);
        if (had != count || memcmp(old, buffer, (size_t)count))
            if (pwrite(out, buffer, (size_t)count, at) != count) { close(out); return -1; }
        at += count;
    }
    if (count == 0 && ftruncate(out, at)) count = -1;
    close(out);
    return count < 0 ? -1 : 0;
}

static int keep_folder(int fd, const char *key) {
    char path[4200], fresh[4208], entry[300];
    snprintf(path, sizeof path, "%s/folders/%s", shadow, key);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    FILE *out = fopen(fresh, "we");
    if (!dir || !out) return -1;
    struct dirent *each;
    while ((each = readdir(dir))) {
        struct statx stx;
        if (!strcmp(each->d_name, ".") || !strcmp(each->d_name, "..")) continue;
        if (key_of(dirfd(dir), each->d_name, entry, sizeof entry, &stx)) continue;
        char type = S_ISDIR(stx.stx_mode) ? 'd' : S_ISREG(stx.stx_mode) ? 'f' : S_ISLNK(stx.stx_mode) ? 'l' : 'o';
        fprintf(out, "%c %o %s %s", type, stx.stx_mode & 07777, entry, each->d_name);
        fputc(0, out);
    }
    closedir(dir);
    if (fclose(out)) return -1;
    return rename(fresh, path);
}

static int keep(int fd) {
    char key[128];
    struct statx stx;
    if (key_of(fd, "", key, sizeof key, &stx)) return -1;
    if (S_ISREG(stx.stx_mode)) return keep_file(fd, key);
    if (S_ISDIR(stx.stx_mode)) return keep_folder(fd, key);
    return -1;
}

/* What is there before the program starts is on disk. */
static void keep_tree(int fd) {
    if (keep(fd)) die("cannot keep what is there");
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    if (!dir) die("cannot read a folder");
    struct dirent *each;
    while ((each = readdir(dir))) {
        if (!strcmp(each->d_name, ".") || !strcmp(each->d_name, "..")) continue;
        struct stat st;
        if (fstatat(dirfd(dir), each->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) continue;
        int child = openat(dirfd(dir), each->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (child < 0) continue;
        if (S_ISDIR(st.st_mode)) keep_tree(child);
        else if (keep(child)) die("cannot keep a file");
        close(child);
    }
    closedir(dir);
}

static int send_fd(int socket, int fd) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = {&byte, 1};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET, part->cmsg_type = SCM_RIGHTS, part->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
}

static int receive_fd(int socket) {
    char byte, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = {&byte, 1};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (part) memcpy(&fd, CMSG_DATA(part), sizeof fd);
    return fd;
}

static void run_program(int socket, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    /* A helper that is killed takes the program with it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)) die("pdeathsig");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no_new_privs");
    int listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    if (listener < 0) die("seccomp");
    if (send_fd(socket, listener)) die("cannot hand over the listener");
    close(listener);
    close(socket);
    execv(argv[0], argv);
    die(argv[0]);
}

/* Whether the sync was for the data folder and is done. */
static int serve_sync(const struct seccomp_notif *request) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/%u/fd/%d", request->pid, (int)request->data.args[0]);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    size_t prefix = strlen(data);
    if (strncmp(path, data, prefix) || (path[prefix] != '/' && path[prefix] != 0)) return 0;
    int fd = open(link, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    int kept = keep(fd) == 0;
    close(fd);
    return kept;
}

static void serve(int listener, int program) {
    struct pollfd waits[2] = {{.fd = listener, .events = POLLIN}, {.fd = program, .events = POLLIN}};
    for (;;) {
        if (poll(waits, 2, -1) < 0 && errno != EINTR) die("poll");
        if (waits[1].revents) return;
        if (!(waits[0].revents & POLLIN)) continue;
        struct seccomp_notif request;
        memset(&request, 0, sizeof request);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request)) continue;
        struct seccomp_notif_resp response = {.id = request.id};
        if (!serve_sync(&request)) response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
    }
}

static void note(const char *name, const char *text) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", shadow, name);
    FILE *out = fopen(path, "we");
    if (!out || fputs(text, out) < 0 || fclose(out)) die(path);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: powercut SHADOW DATA PROGRAM ARGS...\n");
        return 125;
    }
    shadow = argv[1];
    if (!realpath(argv[2], data)) die(argv[2]);
    int root = open(data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char key[128];
    struct statx stx;
    if (root < 0 || key_of(root, "", key, sizeof key, &stx)) die(data);
    note("root", key);
    keep_tree(root);

    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) die("socketpair");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) run_program(sockets[1], argv + 3);
    close(sockets[1]);
    char text[32];
    snprintf(text, sizeof text, "%d", child);
    int program = (int)syscall(SYS_pidfd_open, child, 0);
    int listener = receive_fd(sockets[0]);
    note("pid", text);
    if (listener >= 0 && program >= 0) serve(listener, program);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Counts the system calls with which a process writes below one folder, and makes one of them fail or kills the process.
 *
 * A seccomp filter traps these calls wherever they are made (Python, Rust, the C library's own fwrite), and the handler
 * of SIGSYS repeats them with the one instruction that the filter allows. Linux on x86-64 only.
 *
 * Every call is recorded. A sync is not executed: the tests check the order of calls, and real syncs would make them
 * slow.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>

enum { OPEN = 1, WRITE, TRUNCATE, SYNC, RENAME, LINK, UNLINK, MKDIR, RMDIR, SYMLINK };
enum { OBSERVE, ERROR, KILL, TORN, SHORT, FULL };
enum { LONGEST = 4096 };

struct record { /* the format that shim.py reads */
    int32_t point, op, flags, path, other, unused;
    int64_t result;
};

static char root[LONGEST];
static size_t root_length;
static int log_file, mode, error;
static long at, points;
static volatile char busy;

long pass(long number, long a, long b, long c, long d, long e, long f);
extern char passed[];
__asm__(".text\n.globl pass\n.type pass,@function\npass:\n"
        "mov %rdi,%rax\nmov %rsi,%rdi\nmov %rdx,%rsi\nmov %rcx,%rdx\nmov %r8,%r10\nmov %r9,%r8\nmov 8(%rsp),%r9\n"
        "syscall\n.globl passed\npassed:\nret\n");

static void path_of(long descriptor, char *path) {
    char name[40] = "/proc/self/fd/";
    char digits[20];
    int count = 0, length = strlen(name);
    if (descriptor == AT_FDCWD) {
        if (pass(SYS_getcwd, (long)path, LONGEST, 0, 0, 0, 0) <= 0) path[0] = 0;
        return;
    }
    do digits[count++] = '0' + descriptor % 10; while (descriptor /= 10);
    while (count) name[length++] = digits[--count];
    name[length] = 0;
    long got = pass(SYS_readlink, (long)name, (long)path, LONGEST - 1, 0, 0, 0);
    path[got > 0 ? got : 0] = 0;
}

static void path_at(long folder, const char *name, char *path) {
    size_t length = 0;
    path[0] = 0;
    if (name[0] != '/') {
        path_of(folder, path);
        length = strlen(path);
        if (length + 1 < LONGEST) path[length++] = '/';
    }
    for (; *name && length + 1 < LONGEST; name++) path[length++] = *name;
    path[length] = 0;
}

static int inside(const char *path) {
    size_t length = strlen(path);
    if (length > 10 && !strcmp(path + length - 10, " (deleted)")) return 0;
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static void keep(const void *data, size_t size) {
    pass(SYS_write, log_file, (long)data, size, 0, 0, 0);
}

/* Writes at most `most` bytes of the pieces, one after the other. */
static long write_pieces(long descriptor, const struct iovec *pieces, long count, long offset, int placed, long most) {
    long done = 0;
    for (long i = 0; i < count && done < most; i++) {
        long size = pieces[i].iov_len;
        if (size > most - done) size = most - done;
        long got = placed ? pass(SYS_pwrite64, descriptor, (long)pieces[i].iov_base, size, offset + done, 0, 0)
                          : pass(SYS_write, descriptor, (long)pieces[i].iov_base, size, 0, 0, 0);
        if (got < 0) return done ? done : got;
        done += got;
        if (got < size) break;
    }
    return done;
}

struct call {
    int op, flags, placed;
    long descriptor, offset;
    struct iovec one;
    const struct iovec *pieces;
    long count;
    char path[LONGEST], other[LONGEST];
};

/* Returns the kind of a system call that writes below the folder, or 0 for any other call. */
static int understand(struct call *call, int number, const long *a) {
    switch (number) {
    case SYS_open: path_at(AT_FDCWD, (char *)a[0], call->path); call->flags = a[1]; call->op = OPEN; break;
    case SYS_creat:
        path_at(AT_FDCWD, (char *)a[0], call->path); call->flags = O_CREAT | O_WRONLY | O_TRUNC; call->op = OPEN; break;
    case SYS_openat: path_at((int)a[0], (char *)a[1], call->path); call->flags = a[2]; call->op = OPEN; break;
    case SYS_openat2:
        path_at((int)a[0], (char *)a[1], call->path); call->flags = ((struct open_how *)a[2])->flags; call->op = OPEN; break;
    case SYS_write: case SYS_pwrite64:
        call->one.iov_base = (void *)a[1]; call->one.iov_len = a[2]; call->pieces = &call->one; call->count = 1;
        call->op = WRITE; break;
    case SYS_writev: case SYS_pwritev: case SYS_pwritev2:
        call->pieces = (struct iovec *)a[1]; call->count = a[2]; call->op = WRITE; break;
    case SYS_ftruncate: call->descriptor = a[0]; call->offset = a[1]; path_of(a[0], call->path); call->op = TRUNCATE; break;
    case SYS_truncate: path_at(AT_FDCWD, (char *)a[0], call->path); call->offset = a[1]; call->op = TRUNCATE; break;
    case SYS_fsync: case SYS_fdatasync: path_of(a[0], call->path); call->op = SYNC; break;
    case SYS_rename:
        path_at(AT_FDCWD, (char *)a[0], call->path); path_at(AT_FDCWD, (char *)a[1], call->other); call->op = RENAME; break;
    case SYS_renameat: case SYS_renameat2:
        path_at((int)a[0], (char *)a[1], call->path); path_at((int)a[2], (char *)a[3], call->other);
        call->flags = number == SYS_renameat2 ? a[4] : 0; call->op = RENAME; break;
    case SYS_link:
        path_at(AT_FDCWD, (char *)a[0], call->path); path_at(AT_FDCWD, (char *)a[1], call->other); call->op = LINK; break;
    case SYS_linkat:
        path_at((int)a[0], (char *)a[1], call->path); path_at((int)a[2], (char *)a[3], call->other); call->op = LINK; break;
    case SYS_symlink: path_at(AT_FDCWD, (char *)a[1], call->path); call->op = SYMLINK; break;
    case SYS_symlinkat: path_at((int)a[1], (char *)a[2], call->path); call->op = SYMLINK; break;
    case SYS_unlink: path_at(AT_FDCWD, (char *)a[0], call->path); call->op = UNLINK; break;
    case SYS_unlinkat:
        path_at((int)a[0], (char *)a[1], call->path); call->op = a[2] & AT_REMOVEDIR ? RMDIR : UNLINK; break;
    case SYS_mkdir: path_at(AT_FDCWD, (char *)a[0], call->path); call->op = MKDIR; break;
    case SYS_mkdirat: path_at((int)a[0], (char *)a[1], call->path); call->op = MKDIR; break;
    case SYS_rmdir: path_at(AT_FDCWD, (char *)a[0], call->path); call->op = RMDIR; break;
    }
    if (call->op == WRITE) {
        call->descriptor = a[0];
        call->placed = number == SYS_pwrite64 || number == SYS_pwritev || (number == SYS_pwritev2 && a[3] != -1);
        call->offset = call->placed ? a[3] : 0;
        path_of(a[0], call->path);
    }
    if (call->op == OPEN && (call->flags & O_ACCMODE) == O_RDONLY && !(call->flags & (O_CREAT | O_TRUNC))) return 0;
    return call->op && (inside(call->path) || (call->other[0] && inside(call->other)));
}

static int grows(const struct call *call) {
    switch (call->op) {
    case OPEN: return call->flags & O_CREAT && pass(SYS_access, (long)call->path, F_OK, 0, 0, 0, 0);
    case WRITE: case MKDIR: case LINK: case SYMLINK: case RENAME: return 1;
    }
    return 0;
}

static void record(const struct call *call, long point, long result) {
    struct record head = {point, call->op, call->flags, strlen(call->path), strlen(call->other), 0, result};
    keep(&head, sizeof head);
    keep(call->path, head.path);
    keep(call->other, head.other);
}

static long perform(struct call *call, int number, const long *a) {
    long point = ++points, result, total = 0;
    int here = mode != OBSERVE && point == at;
    for (long i = 0; i < call->count; i++) total += call->pieces[i].iov_len;
    if ((here && mode == ERROR) || (mode == FULL && point >= at && grows(call))) {
        record(call, point, -error);
        return -error;
    }
    if (here && mode == KILL) pass(SYS_kill, pass(SYS_getpid, 0, 0, 0, 0, 0, 0), SIGKILL, 0, 0, 0, 0);
    if (call->op == SYNC)
        result = 0;
    else if (call->op == WRITE && here && (mode == SHORT || mode == TORN))
        result = write_pieces(call->descriptor, call->pieces, call->count, call->offset, call->placed, total > 1 ? total / 2 : 1);
    else
        result = pass(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    record(call, point, result);
    if (here && mode == TORN) pass(SYS_kill, pass(SYS_getpid, 0, 0, 0, 0, 0, 0), SIGKILL, 0, 0, 0, 0);
    return result;
}

static long handle(int number, const long *a) {
    struct call call;
    memset(&call, 0, offsetof(struct call, path));
    call.path[0] = call.other[0] = 0;
    char out[LONGEST];
    switch (number) { /* calls that are not modelled fail: every caller falls back to those that are */
    case SYS_io_uring_setup: return -ENOSYS;
    case SYS_copy_file_range: path_of(a[2], out); if (inside(out)) return -EINVAL; break;
    case SYS_sendfile: path_of(a[0], out); if (inside(out)) return -EINVAL; break;
    case SYS_fallocate: path_of(a[0], out); if (inside(out)) return -EOPNOTSUPP; break;
    }
    if (!understand(&call, number, a)) return pass(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (call.op == OPEN && (call.flags & O_TMPFILE) == O_TMPFILE) return -EOPNOTSUPP;
    while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) pass(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    long result = perform(&call, number, a);
    __atomic_clear(&busy, __ATOMIC_RELEASE);
    return result;
}

static void trapped(int signal, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long a[6] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
    (void)signal;
    r[REG_RAX] = handle(info->si_syscall, a);
}

static const int TRAPPED[] = {
    SYS_open, SYS_openat, SYS_openat2, SYS_creat, SYS_write, SYS_pwrite64, SYS_writev, SYS_pwritev, SYS_pwritev2,
    SYS_ftruncate, SYS_truncate, SYS_fsync, SYS_fdatasync, SYS_rename, SYS_renameat, SYS_renameat2, SYS_link, SYS_linkat,
    SYS_symlink, SYS_symlinkat, SYS_unlink, SYS_unlinkat, SYS_mkdir, SYS_mkdirat, SYS_rmdir, SYS_copy_file_range,
    SYS_sendfile, SYS_fallocate, SYS_io_uring_setup};
enum { CALLS = sizeof TRAPPED / sizeof *TRAPPED, HEAD = 6 };

/* Starts counting in this thread and in the threads that it starts. Returns 0, or -1 with errno. */
int arm(const char *folder, int log_descriptor, int how, long point, int number) {
    struct sock_filter filter[HEAD + CALLS + 2];
    uint64_t allowed = (uint64_t)passed;
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    strncpy(root, folder, LONGEST - 1);
    root_length = strlen(root);
    log_file = log_descriptor, mode = how, at = point, error = number;
    int position = offsetof(struct seccomp_data, instruction_pointer);
    filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, position);
    filter[1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed, 0, 3);
    filter[2] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, position + 4);
    filter[3] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(allowed >> 32), 0, 1);
    filter[4] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[5] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < CALLS; i++)
        filter[HEAD + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TRAPPED[i], CALLS - i, 0);
    filter[HEAD + CALLS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[HEAD + CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (sigaction(SIGSYS, &action, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

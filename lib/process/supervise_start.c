/* SPDX-License-Identifier: BSD-3-Clause */
/* Starting the ranks: pipes, binding, fork. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hostlist/affinity.h"
#include "process/supervise_internal.h"

/* ---- binding ---- */

/* Share number index of count equal shares of the allowed CPUs. With more ranks than CPUs each gets
 * one, starting over from the first. NULL if memory is out. */
static struct idset *share_of(const struct idset *allowed, size_t index, size_t count)
{
	size_t cpus = idset_count(allowed), position = 0;
	size_t first = count > cpus ? index % cpus : index * cpus / count;
	size_t end = count > cpus ? first + 1 : (index + 1) * cpus / count;
	struct idset *share = idset_new();

	for (int cpu = -1; share && (cpu = idset_next(allowed, cpu)) >= 0; position++)
		if (position >= first && position < end && idset_add(share, cpu)) {
			idset_free(share);
			return NULL;
		}
	return share;
}

/* Bind this thread as the rank should be. The child inherits the binding, so nothing unsafe runs
 * between its fork and exec. before: this thread's own CPUs. */
static void bind_thread(struct supervise *supervise, const struct idset *before,
			const struct supervise_rank *rank, size_t index, size_t count)
{
	struct idset *share = supervise->this_system ? NULL : share_of(before, index, count);
	const struct idset *wanted = supervise->this_system ? rank->cpus_os : share;

	char note[AFFINITY_NOTE_MAX];

	if (affinity_bind(rank->rank, wanted, note, sizeof note))
		supervise_note(supervise, "%s", note);
	idset_free(share);
}

/* ---- one rank ---- */

/* A pipe whose ends are above stdio, so that the child's dup2 overwrites neither. */
static int pipe_above(int ends[2])
{
	if (pipe2(ends, O_CLOEXEC))
		return -1;
	for (int i = 0; i < 2; i++) {
		if (ends[i] > 2)
			continue;

		int moved = fcntl(ends[i], F_DUPFD_CLOEXEC, 3);
		int error = errno;

		close(ends[i]);
		ends[i] = moved;
		if (moved < 0) {
			close(ends[!i]);
			errno = error;
			return -1;
		}
	}
	return 0;
}

static void close_ends(int ends[2])
{
	for (int i = 0; i < 2; i++)
		if (ends[i] >= 0)
			close(ends[i]);
}

/* The child inherits a mask that blocks all signals, so that no handler of ours runs in it. */
static pid_t fork_masked(const struct child_spec *spec)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);

	pid_t pid = fork();

	if (pid == 0)
		child_run(spec);

	int error = errno;

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = error;
	return pid;
}

void supervise_free_names(struct rank_process *process)
{
	free(process->program);
	free(process->dir);
	process->program = process->dir = NULL;
}

static int report_start_failed(const struct supervise_rank *rank, const char *what,
			       struct error *err)
{
	const char *hint = "";

	if (errno == EAGAIN)
		hint = " (check the process limits: ulimit -u, the cgroup's pids.max)";
	else if (errno == EMFILE || errno == ENFILE)
		hint = " (check the open file limit: ulimit -n)";
	return error_set(err, ERR_UNAVAILABLE, "cannot start rank %d: %s: %s%s", rank->rank, what,
			 strerror(errno), hint);
}

static int fork_rank(struct supervise *supervise, const struct supervise_rank *rank, int null_fd,
		     struct rank_process *process, struct error *err)
{
	int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}}; /* stdout, stderr, report */
	struct child_spec spec;
	int rc = child_spec_make(rank->argv, rank->envp, rank->cwd, &spec, err);

	if (rc)
		return error_prefix(err, "rank %d", rank->rank);
	process->program = strdup(rank->argv[0]);
	process->dir = rank->cwd ? strdup(rank->cwd) : NULL;
	if (!process->program || (rank->cwd && !process->dir)) {
		rc = error_memory(err, "starting a rank");
		goto out;
	}
	for (int i = 0; i < 3; i++) {
		if (pipe_above(pipes[i])) {
			pipes[i][0] = pipes[i][1] = -1;
			rc = report_start_failed(rank, "pipe", err);
			goto out;
		}
		fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
	}

	bool has_stdin = rank->stdin_fd >= 0 && fcntl(rank->stdin_fd, F_GETFD) >= 0;

	spec.stdin_fd = has_stdin ? rank->stdin_fd : null_fd;
	spec.stdout_fd = pipes[0][1];
	spec.stderr_fd = pipes[1][1];
	spec.has_terminal = rank->pty_fd > 0;
	if (spec.has_terminal) {
		close(pipes[0][0]);
		pipes[0][0] = fcntl(rank->pty_fd, F_DUPFD_CLOEXEC, 3);
		spec.stdout_fd = spec.stderr_fd = rank->stdin_fd;
	}
	spec.report_fd = pipes[2][1];
	spec.parent = getpid();
	spec.limits = rank->limits;
	spec.service = rank->service;
	spec.files = supervise->files.rlim_cur ? &supervise->files : NULL;
	process->forked_ms = loop_now_ms(supervise->loop);
	process->pid = fork_masked(&spec);
	if (process->pid < 0) {
		rc = report_start_failed(rank, "fork", err);
		goto out;
	}
	supervise->running++;
	process->ended = false;
	process->streams[0].fd = pipes[0][0];
	process->streams[1].fd = pipes[1][0];
	pipes[0][0] = pipes[1][0] = -1;
	if (!supervise_watch(supervise, process, pipes[2][0]))
		rc = report_start_failed(rank, "cannot watch its descriptors", err);
	if (process->report.fd >= 0)
		pipes[2][0] = -1;
out:
	for (int i = 0; i < 3; i++)
		close_ends(pipes[i]);
	child_spec_free(&spec);
	return rc;
}

static int make_processes(struct supervise *supervise, const struct supervise_rank *ranks,
			  size_t count, struct error *err)
{
	supervise->processes = calloc(count, sizeof *supervise->processes);
	if (!supervise->processes)
		return error_memory(err, "supervising the ranks");
	supervise->count = count;
	for (size_t i = 0; i < count; i++) {
		struct rank_process *process = &supervise->processes[i];

		process->rank = ranks[i].rank;
		process->local_rank = (int)i;
		process->pid = process->end.fd = process->report.fd = -1;
		process->ended = true; /* until it is forked */
		for (int k = 0; k < 2; k++)
			process->streams[k] = (struct stream){
				.source.fd = -1,
				.owner = supervise,
				.local_rank = (int)i,
				.kind = k ? SUPERVISE_STDERR : SUPERVISE_STDOUT,
				.fd = -1,
			};
	}
	return 0;
}

/* Each rank takes four descriptors: 250 ranks would exceed a usual limit of 1024. */
static void raise_file_limit(struct supervise *supervise)
{
	struct rlimit more;

	if (getrlimit(RLIMIT_NOFILE, &supervise->files))
		return;
	more = supervise->files;
	more.rlim_cur = more.rlim_max;
	setrlimit(RLIMIT_NOFILE, &more);
}

int supervise_start(struct supervise *supervise, const struct supervise_rank *ranks, size_t count,
		    struct error *err)
{
	struct idset *before = NULL; /* this thread's binding, restored after each fork */

	if (supervise->count || !count)
		return error_set(err, ERR_INTERNAL,
				 "the ranks were already started, or there are none");

	int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (null_fd < 0)
		return error_set(err, ERR_UNAVAILABLE, "cannot open /dev/null: %m");

	int rc = make_processes(supervise, ranks, count, err);

	supervise->pidfds = true;
	raise_file_limit(supervise);
	if (!rc && !(before = affinity_get(0)))
		supervise_note(supervise, "ranks are not bound to CPUs: %m");
	if (before && !supervise->this_system)
		supervise_note(supervise,
			       "the topology comes from another machine, so ranks are not bound as "
			       "planned but spread over the CPUs allowed here");
	for (size_t i = 0; i < count && !rc; i++) {
		if (before)
			bind_thread(supervise, before, &ranks[i], i, count);
		rc = fork_rank(supervise, &ranks[i], null_fd, &supervise->processes[i], err);
		if (before)
			affinity_set(before);
	}
	idset_free(before);
	close(null_fd);
	if (rc) {
		supervise_kill_descendants(&supervise->exempt_pid, supervise->exempt_pid > 0,
					   SUPERVISE_KILL_MS, NULL, 0);
		for (size_t i = 0; i < supervise->count; i++)
			supervise->processes[i].ended = true;
		supervise->running = 0;
		supervise->state = STATE_FINISHED;
		return rc;
	}
	supervise_start_timer(supervise);
	return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "node.h"
#include "pmix/server_process.h"
#include "../../support/wait.h"

#define TIME_LIMIT_MS wait_ms(60000)

/* The messages between the two nodes. */
struct message {
	enum { MESSAGE_GATHER, MESSAGE_FETCH, MESSAGE_FETCHED } kind;
	int rank, status;
	uint64_t sequence;
	void *token;
	size_t size;
};

struct run {
	const struct ranks_server_ops *ops;
	struct ranks_server *server;
	bool ready;
	struct node *node;
	pid_t pids[NODE_RANKS];
	/* The gather in progress: the data that came first wait for the other node's. */
	bool have_own, have_other;
	void *token, *own, *other;
	size_t own_size, other_size;
	uint64_t own_sequence, other_sequence;
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void *copy(const void *data, size_t size)
{
	void *result = malloc(size + 1);

	if (result && size)
		memcpy(result, data, size);
	return result;
}

static void gather_try(struct run *run)
{
	if (!run->have_own || !run->have_other)
		return;
	size_t size = run->own_size + run->other_size;
	char *all = malloc(size + 1);
	bool first = run->node->node_index == 0;
	int status = run->own_sequence == run->other_sequence ? 0 : -ERR_NETWORK;

	memcpy(all, first ? run->own : run->other, first ? run->own_size : run->other_size);
	memcpy(all + (first ? run->own_size : run->other_size), first ? run->other : run->own,
	       first ? run->other_size : run->own_size);
	run->have_own = run->have_other = false;
	run->ops->gather_done(run->server, run->token, status, all, size);
	free(all);
	free(run->own);
	free(run->other);
	run->own = run->other = NULL;
}

static int gather(void *context, uint64_t sequence, const void *data, size_t size, void *token)
{
	struct run *run = context;
	struct message message = {MESSAGE_GATHER, .sequence = sequence, .size = size};

	run->node->gathers++;
	run->have_own = true;
	run->own = copy(data, size);
	run->own_size = size;
	run->own_sequence = sequence;
	run->token = token;
	if (file_write_all(run->node->peer, &message, sizeof message) ||
	    file_write_all(run->node->peer, data, size))
		return -ERR_NETWORK;
	gather_try(run);
	return 0;
}

static int fetch(void *context, int rank, void *token)
{
	struct run *run = context;
	struct message message = {MESSAGE_FETCH, .rank = rank, .token = token};

	run->node->fetches++;
	return file_write_all(run->node->peer, &message, sizeof message) ? -ERR_NETWORK : 0;
}

struct serving {
	struct run *run;
	void *token;
};

static void served(void *context, int status, const void *data, size_t size)
{
	struct serving *serving = context;
	struct message message = {MESSAGE_FETCHED, .status = status, .token = serving->token,
				  .size = size};

	if (!file_write_all(serving->run->node->peer, &message, sizeof message) && size)
		(void)!file_write_all(serving->run->node->peer, data, size);
	free(serving);
}

static void aborted(void *context, int local_rank, int status, const char *text)
{
	struct run *run = context;

	run->node->aborts++;
	run->node->abort_rank = local_rank;
	run->node->abort_status = status;
	snprintf(run->node->abort_text, sizeof run->node->abort_text, "%s", text);
	for (int i = 0; i < run->node->ranks_a_node; i++)
		if (run->pids[i] > 0)
			kill(run->pids[i], SIGKILL);
}

static bool read_all(int fd, void *data, size_t size)
{
	for (char *at = data; size;) {
		ssize_t got = read(fd, at, size);

		if (got <= 0 && errno != EINTR)
			return false;
		at += got;
		size -= (size_t)got;
	}
	return true;
}

static bool peer_read(struct run *run)
{
	struct message message;

	if (!read_all(run->node->peer, &message, sizeof message))
		return false;
	void *data = malloc(message.size + 1);

	if (!data || !read_all(run->node->peer, data, message.size)) {
		free(data);
		return false;
	}
	if (message.kind == MESSAGE_GATHER) {
		run->have_other = true;
		run->other = data;
		run->other_size = message.size;
		run->other_sequence = message.sequence;
		gather_try(run);
		return true;
	}
	if (message.kind == MESSAGE_FETCH) {
		struct serving *serving = malloc(sizeof *serving);

		*serving = (struct serving){run, message.token};
		int rc = run->ops->serve(run->server, message.rank, served, serving);

		if (rc)
			served(serving, rc, NULL, 0);
	} else {
		run->ops->fetch_done(run->server, message.token, message.status, data,
				     message.size);
	}
	free(data);
	return true;
}

static int spawn(struct run *run, int local_rank, struct error *err)
{
	struct env *env = env_capture(), *changes = env_new();
	int rc = run->ops->environment(run->server, local_rank, changes, err);
	char **envp = NULL;

	if (!rc)
		rc = env_apply(env, changes, err);
	if (!rc)
		envp = env_to_envp(env);
	if (envp) {
		pid_t pid = fork();

		if (pid == 0) {
			char *argv[] = {(char *)(uintptr_t)run->node->program,
					(char *)(uintptr_t)run->node->mode, NULL};

			execve(argv[0], argv, envp);
			_exit(127);
		}
		run->pids[local_rank] = pid;
	}
	free(envp);
	env_free(env);
	env_free(changes);
	return rc;
}

static int reap(struct run *run)
{
	struct node *node = run->node;
	int alive = 0;

	for (int i = 0; i < node->ranks_a_node; i++) {
		if (run->pids[i] <= 0)
			continue;
		if (waitpid(run->pids[i], &node->status[i], WNOHANG) != run->pids[i]) {
			alive++;
			continue;
		}
		run->pids[i] = 0;
		run->ops->rank_ended(run->server, i);
		for (int j = 0; node->end_on_failure && node->status[i] && j < node->ranks_a_node;
		     j++)
			if (run->pids[j] > 0)
				kill(run->pids[j], SIGKILL);
	}
	return alive;
}

static void loop(struct run *run)
{
	struct node *node = run->node;
	int64_t begin = now_ms();
	struct pollfd fds[2] = {{run->ops->descriptor(run->server), POLLIN, 0},
				{node->peer, POLLIN, 0}};

	while (reap(run) && now_ms() - begin < TIME_LIMIT_MS) {
		poll(fds, 2, 20);
		if (fds[0].revents)
			run->ops->dispatch(run->server);
		if (fds[1].revents && !peer_read(run))
			fds[1].fd = -1;
		if (node->kill_rank >= 0 && now_ms() - begin > node->kill_ms) {
			kill(run->pids[node->kill_rank], SIGKILL);
			node->kill_rank = -1;
		}
	}
	for (int i = 0; i < node->ranks_a_node; i++) {
		if (run->pids[i] <= 0)
			continue;
		kill(run->pids[i], SIGKILL);
		waitpid(run->pids[i], NULL, 0);
		node->status[i] = -1;
	}
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
	(void)info, (void)type, (void)place;
	return remove(path), 0;
}

static bool dir_is_empty(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;

	for (struct dirent *entry; dir && (entry = readdir(dir));)
		count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	if (dir)
		closedir(dir);
	return dir && !count;
}

static void ready(void *context)
{
	((struct run *)context)->ready = true;
}

/* Start the server in process, and wait until it is ready. */
static int start_in_process(struct run *run, struct server_process *process,
			    const struct ranks_job *job, const struct ranks_host *host,
			    struct error *err)
{
	int rc = server_process_start_async(process, job, host, &run->server, err);

	while (!rc && !run->ready) {
		struct pollfd wait = {.fd = run->ops->descriptor(run->server), .events = POLLIN};

		poll(&wait, 1, -1);
		run->ops->dispatch(run->server);
	}
	return rc ? rc : server_process_start_result(run->server, err);
}

int node_run(const struct ranks_server_ops *ops, struct node *node, struct error *err)
{
	struct run run = {.ops = ops, .node = node};
	char dir[] = "/tmp/berth-test-XXXXXX";
	int first[2] = {0, node->ranks_a_node}, count[2] = {node->ranks_a_node, node->ranks_a_node};
	const char *cpus[NODE_RANKS];
	struct ranks_host host = {&run, gather, fetch, aborted, NULL, ready};
	struct server_process *process = NULL;

	if (!mkdtemp(dir))
		return error_set(err, ERR_OUTPUT, "mkdtemp: %s", strerror(errno));
	for (int i = 0; i < NODE_RANKS; i++)
		cpus[i] = "0";
	static int attempt;
	char name[32];

	snprintf(name, sizeof name, "test-job.%d", attempt++);
	struct ranks_job job = {name,
				node->ranks_a_node * node->node_count,
				node->node_index,
				node->node_count,
				node->names,
				first,
				count,
				cpus,
				dir};
	int rc;

	if (node->process) {
		run.ops = &ranks_server_process;
		rc = server_process_fork(node->process, &process, err);
		if (!rc)
			rc = start_in_process(&run, process, &job, &host, err);
	} else {
		rc = ops->start(&job, &host, &run.server, err);
	}

	for (int i = 0; !rc && i < node->ranks_a_node; i++)
		rc = spawn(&run, i, err);
	if (!rc)
		loop(&run);
	if (run.server)
		run.ops->stop(run.server);
	server_process_free(process);
	free(run.own);
	free(run.other);
	node->dir_clean = dir_is_empty(dir);
	/* The agent must remove what a crashed server has left. */
	nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	return rc;
}

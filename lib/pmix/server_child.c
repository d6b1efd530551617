/* SPDX-License-Identifier: BSD-3-Clause */
/* The PMIx server's process: its side of the channel, its fork and its end. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/module.h"
#include "pmix/server_process_internal.h"

struct server_child {
	struct channel channel;
	const struct ranks_server_ops *ops;
	struct error module_error;
	struct ranks_server *server;
};

/* A request from another agent that the server is working on. */
struct remote_request {
	struct server_child *server_child;
	uint64_t token;
};

static int send_frame(struct server_child *server_child, struct frame header, const void *data)
{
	/* The agent always reads. If a send fails the agent has gone, and this process ends. */
	return channel_send(&server_child->channel, &header, data) ? -ERR_NETWORK : 0;
}

static void reply(struct server_child *server_child, int rc, const char *text)
{
	send_frame(server_child,
		   (struct frame){.kind = FRAME_REPLY, .number = rc, .size = strlen(text)}, text);
}

/* ---- requests of the server to its host ---- */

static int host_gather(void *context, uint64_t sequence, const void *data, size_t size, void *token)
{
	return send_frame(context,
			  (struct frame){.kind = FRAME_GATHER,
					 .sequence = sequence,
					 .token = (uintptr_t)token,
					 .size = size},
			  data);
}

static int host_fetch(void *context, int rank, void *token)
{
	return send_frame(
		context,
		(struct frame){.kind = FRAME_FETCH, .number = rank, .token = (uintptr_t)token},
		NULL);
}

static void host_abort(void *context, int local_rank, int status, const char *text)
{
	send_frame(context,
		   (struct frame){.kind = FRAME_ABORT,
				  .number = local_rank,
				  .sequence = (uint64_t)(int64_t)status,
				  .size = text ? strlen(text) : 0},
		   text);
}

static void served(void *context, int status, const void *data, size_t size)
{
	struct remote_request *remote_request = context;

	send_frame(remote_request->server_child,
		   (struct frame){.kind = FRAME_SERVED,
				  .token = remote_request->token,
				  .number = status,
				  .size = size},
		   data);
	free(remote_request);
}

/* ---- requests of the agent ---- */

static const char **string_list(const json_t *json)
{
	size_t count = json_array_size(json);
	const char **list = calloc(count + 1, sizeof *list);

	for (size_t i = 0; list && i < count; i++)
		list[i] = json_string_value(json_array_get(json, i));
	return list;
}

static int *number_list(const json_t *json)
{
	size_t count = json_array_size(json);
	int *list = calloc(count + 1, sizeof *list);

	for (size_t i = 0; list && i < count; i++)
		list[i] = (int)json_integer_value(json_array_get(json, i));
	return list;
}

/* The environment of a rank, as FRAME_REPLY has it. A new reference; NULL if memory is out. */
static json_t *environment(struct server_child *server_child, int local_rank)
{
	struct error err = {0};
	struct env *changes = env_new();
	JSON_AUTO list = json_array();
	int rc = changes ? server_child->ops->environment(server_child->server, local_rank, changes,
							  &err)
			 : error_memory(&err, "the environment");

	for (size_t i = 0; !rc && i < env_count(changes); i++) {
		const struct env_var *var = env_at(changes, i);

		if (json_array_append_new(
			    list, json_pack("[s, s?, s?]", var->name, var->value, var->why)))
			rc = error_memory(&err, "the environment");
	}
	env_free(changes);
	return rc ? json_pack("{s:i, s:o}", "code", err.code, "text", json_text(err.text))
		  : json_incref(list);
}

static char *environments(struct server_child *server_child, int rank_count)
{
	JSON_AUTO list = json_array();

	for (int i = 0; i < rank_count; i++)
		if (json_array_append_new(list, environment(server_child, i)))
			return NULL;
	return json_dumps(list, JSON_COMPACT);
}

/* *text is malloced: the ranks' environments. */
static int start_for_job(struct server_child *server_child, const void *data, size_t size,
			 char **text, struct error *err)
{
	struct ranks_host host = {.context = server_child,
				  .gather = host_gather,
				  .fetch = host_fetch,
				  .abort = host_abort};
	struct ranks_job job = {0};
	JSON_AUTO json = NULL;
	int rc = json_read("the job description", data, size, FRAME_MAX, &json, err);

	if (rc)
		return rc;
	if (!server_child->ops) {
		*err = server_child->module_error;
		return -err->code;
	}
	json_t *nodes, *first, *counts, *cpus;
	json_error_t where;

	if (json_unpack_ex(json, &where, 0, "{s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o}", "name",
			   &job.name, "dir", &job.dir, "world_size", &job.world_size, "index",
			   &job.node_index, "nodes", &nodes, "first", &first, "counts", &counts,
			   "cpus", &cpus))
		return error_set(err, ERR_INTERNAL, "invalid job description: %s", where.text);
	job.node_count = (int)json_array_size(nodes);
	job.nodes = string_list(nodes);
	job.first_rank = number_list(first);
	job.rank_count = number_list(counts);
	job.cpus = json_is_array(cpus) ? string_list(cpus) : NULL;
	if (!job.nodes || !job.first_rank || !job.rank_count || (json_is_array(cpus) && !job.cpus))
		rc = error_memory(err, "the job description");
	else
		rc = server_child->ops->start(&job, &host, &server_child->server, err);
	if (!rc && !(*text = environments(server_child, job.rank_count[job.node_index])))
		rc = error_memory(err, "the environment");
	free((void *)job.nodes);
	free((void *)job.first_rank);
	free((void *)job.rank_count);
	free((void *)job.cpus);
	return rc;
}

static void serve(struct server_child *server_child, const struct frame *header)
{
	struct remote_request *remote_request = malloc(sizeof *remote_request);

	if (remote_request) {
		*remote_request = (struct remote_request){server_child, header->token};
		if (!server_child->ops->serve(server_child->server, header->number, served,
					      remote_request))
			return;
		free(remote_request);
	}
	send_frame(server_child,
		   (struct frame){
			   .kind = FRAME_SERVED, .token = header->token, .number = -ERR_NETWORK},
		   NULL);
}

/* Both strings must end within the data. */
static void prepare(struct server_child *server_child, int node_index, const char *data,
		    size_t size)
{
	size_t dir_size = strnlen(data, size) + 1;
	struct error err = {0};

	if (!server_child->ops || dir_size >= size || data[size - 1])
		return;
	/* start tries again and then reports the error. */
	(void)server_child->ops->prepare(data, data + dir_size, node_index, &err);
}

static void handle(struct server_child *server_child, const struct frame *header, const void *data)
{
	struct error err = {0};

	if (header->kind == FRAME_PREPARE) {
		prepare(server_child, header->number, data, header->size);
		return;
	}
	if (header->kind == FRAME_START) {
		char *text = NULL;
		int rc = server_child->server
				 ? error_set(&err, ERR_INTERNAL,
					     "the PMIx server already serves a job")
				 : start_for_job(server_child, data, header->size, &text, &err);

		reply(server_child, rc, rc ? err.text : text);
		free(text);
		return;
	}
	if (!server_child->server) {
		if (header->kind == FRAME_STOP)
			reply(server_child, -ERR_INTERNAL, "no PMIx server is running");
		return;
	}
	void *token = (void *)(uintptr_t)header->token;

	switch (header->kind) {
	case FRAME_GATHER_DONE:
		server_child->ops->gather_done(server_child->server, token, header->number, data,
					       header->size);
		break;
	case FRAME_FETCH_DONE:
		server_child->ops->fetch_done(server_child->server, token, header->number, data,
					      header->size);
		break;
	case FRAME_SERVE:
		serve(server_child, header);
		break;
	case FRAME_RANK_ENDED:
		server_child->ops->rank_ended(server_child->server, header->number);
		break;
	case FRAME_STOP:
		server_child->ops->stop(server_child->server);
		server_child->server = NULL;
		reply(server_child, 0, "");
		break;
	default:
		/* Both sides are one build, so an unknown kind is a defect. */
		_exit(ERR_INTERNAL);
	}
}

/* ---- lifetime ---- */

static void detach(int fd, pid_t parent)
{
	static const int ignored[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2,
				      SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP};
	sigset_t none;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* The agent may have ended before prctl took effect. */
	if (getppid() != parent)
		_exit(0);
	prctl(PR_SET_NAME, "berth-pmix");
	setsid(); /* the terminal's signals are for the ranks */
	for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
		/* Signals for the job are for its ranks, which use the server until they have
		 * ended. Then the agent ends it. */
		signal(ignored[i], SIG_IGN);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);

	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null >= 0) {
		/* stderr stays open, for PMIx's own messages. */
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
	}
	if (fd != 3)
		dup3(fd, 3, O_CLOEXEC);
	file_close_range(4, INT_MAX);
}

/* Wait for the agent or PMIx. false: the agent has gone. */
static bool run_once(struct server_child *server_child)
{
	struct channel *channel = &server_child->channel;
	struct pollfd fds[2] = {{.fd = channel->fd, .events = POLLIN},
				{.fd = -1, .events = POLLIN}};
	const void *data;
	struct frame header;
	int rc;

	if (channel->out.size)
		fds[0].events |= POLLOUT;
	if (server_child->server)
		fds[1].fd = server_child->ops->descriptor(server_child->server);
	if (poll(fds, 2, -1) < 0)
		return true; /* EINTR */
	if (server_child->server && fds[1].revents)
		server_child->ops->dispatch(server_child->server);
	if (channel_flush(channel, 0) < 0)
		return false;
	if (fds[0].revents & (POLLIN | POLLHUP | POLLERR)) {
		/* What the agent has sent before it ended is still handled. */
		bool gone = channel_fill(channel) != 0;

		while ((rc = channel_next(channel, &header, &data)) > 0)
			handle(server_child, &header, data);
		return !gone && !rc;
	}
	return true;
}

/* Serve the channel on fd until it ends. */
static _Noreturn void run_child(int fd, pid_t parent, const char *module_path)
{
	struct server_child server_child = {.channel = {.fd = 3}};
	void *ops = NULL;

	detach(fd, parent);
	server_accept_guard();
	/* Here and at once: the library stays out of the agent, and loads while hwloc discovers. */
	if (!module_load("ranks-pmix", "ranks_server_pmix", module_path, 0, &ops,
			 &server_child.module_error))
		server_child.ops = ops;
	while (run_once(&server_child))
		;
	/* The agent has gone or is done: do not wait for PMIx's threads. */
	if (server_child.server)
		server_child.ops->stop(server_child.server);
	_exit(0);
}

/* ---- the agent's side: fork and end ---- */

pid_t server_process_pid(const struct server_process *process)
{
	return process ? process->pid : 0;
}

int server_process_fork(const char *module_path, struct server_process **out, struct error *err)
{
	struct server_process *process = calloc(1, sizeof *process);
	pid_t parent = getpid();
	int fds[2];

	if (!process)
		return error_memory(err, "the PMIx server process");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds)) {
		free(process);
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot create a socket pair for the PMIx server: %m");
	}
	process->pid = fork();
	if (process->pid == 0)
		run_child(fds[1], parent, module_path);
	close(fds[1]);
	process->channel.fd = fds[0];
	if (process->pid < 0) {
		error_set(err, ERR_UNAVAILABLE, "cannot fork the PMIx server: %m");
		channel_close(&process->channel);
		free(process);
		return -err->code;
	}
	*out = process;
	return 0;
}

void server_process_prepare(struct server_process *process, const char *dir, const char *node,
			    int node_index)
{
	size_t dir_size = strlen(dir) + 1, node_size = strlen(node) + 1;
	char *data = process ? malloc(dir_size + node_size) : NULL;
	struct frame header = {
		.kind = FRAME_PREPARE, .number = node_index, .size = dir_size + node_size};

	if (!data)
		return;
	memcpy(data, dir, dir_size);
	memcpy(data + dir_size, node, node_size);
	(void)!channel_send(&process->channel, &header, data);
	free(data);
}

void server_process_exit_text(struct server_process *process, char *text, size_t size)
{
	int status = 0;
	struct timespec pause = {0, 50000};

	/* Usually it ends within a millisecond; wait about 1 s in all. */
	for (int i = 0; i < 100 && process->pid > 0; i++) {
		pid_t got = waitpid(process->pid, &status, WNOHANG);

		if (!got) {
			nanosleep(&pause, NULL);
			if (pause.tv_nsec < 10000000)
				pause.tv_nsec *= 2;
			continue;
		}
		/* The code that reaps this process's other children has reaped it: there is no
		 * status. */
		if (got < 0)
			snprintf(text, size, "ended");
		else if (WIFSIGNALED(status))
			snprintf(text, size, "was killed by signal %d (%s)", WTERMSIG(status),
				 strsignal(WTERMSIG(status)));
		else
			snprintf(text, size, "exited with code %d", WEXITSTATUS(status));
		process->pid = 0;
		return;
	}
	snprintf(text, size, "closed its connection");
}

void server_process_free(struct server_process *process)
{
	char text[64];

	if (!process)
		return;
	channel_close(&process->channel);
	/* It ends by itself within 1 s, or is killed, which takes longer on a busy machine. If it
	 * hangs in a file system, beyond the reach of SIGKILL, the end of the ranks reports it. */
	for (int i = 0; i < 4 && process->pid > 0; i++) {
		if (i)
			kill(process->pid, SIGKILL);
		server_process_exit_text(process, text, sizeof text);
	}
	free(process);
}

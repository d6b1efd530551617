/* SPDX-License-Identifier: BSD-3-Clause */
#include "ranks/process.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "ranks/channel.h"
#include "ranks/process_child.h"

#define ANSWER_MS 30000 /* PMIx's start takes tens of ms; a loaded machine more */
#define STOP_MS 3000
#define WRITE_MS 10000

struct ranks_process {
	pid_t pid;
	struct channel channel;
};

/* A frame that came while an answer was waited for. */
struct kept {
	struct kept *next;
	struct frame head;
	unsigned char data[];
};

/* A question to the server of somebody else. */
struct serving {
	struct serving *next;
	uint64_t token;
	void (*done)(void *context, int status, const void *data, size_t size);
	void *context;
};

struct ranks_server {
	struct ranks_process *process;
	struct ranks_host host;
	int poll_fd; /* epoll: the channel and wake_fd */
	int wake_fd; /* frames were kept */
	struct kept *first, **last;
	struct serving *serving;
	uint64_t questions;
	bool lost;
};

pid_t ranks_process_pid(const struct ranks_process *process)
{
	return process ? process->pid : 0;
}

int ranks_process_fork(const char *module_path, struct ranks_process **out, struct error *err)
{
	struct ranks_process *process = calloc(1, sizeof *process);
	pid_t parent = getpid();
	int fds[2];

	if (!process)
		return error_memory(err, "the PMIx server's process");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds)) {
		free(process);
		return error_set(err, ERR_UNAVAILABLE, "no socket pair for the PMIx server: %s",
				 strerror(errno));
	}
	process->pid = fork();
	if (process->pid == 0)
		process_child_run(fds[1], parent, module_path);
	close(fds[1]);
	process->channel.fd = fds[0];
	if (process->pid < 0) {
		error_set(err, ERR_UNAVAILABLE, "no process for the PMIx server: %s",
			  strerror(errno));
		channel_close(&process->channel);
		free(process);
		return -err->code;
	}
	*out = process;
	return 0;
}

void ranks_process_prepare(struct ranks_process *process, const char *folder, const char *node,
			   int node_index)
{
	size_t folder_size = strlen(folder) + 1, node_size = strlen(node) + 1;
	char *data = process ? malloc(folder_size + node_size) : NULL;
	struct frame head = {
		.kind = FRAME_PREPARE, .number = node_index, .size = folder_size + node_size};

	if (!data)
		return;
	memcpy(data, folder, folder_size);
	memcpy(data + folder_size, node, node_size);
	(void)!channel_send(&process->channel, &head, data);
	free(data);
}

/* How it ended, for people; it is reaped. */
static void end_text(struct ranks_process *process, char *text, size_t size)
{
	int status = 0;
	struct timespec pause = {0, 250000};

	/* Mostly it is gone within a millisecond; about 1 s in all. */
	for (int i = 0; i < 100 && process->pid > 0; i++) {
		pid_t got = waitpid(process->pid, &status, WNOHANG);

		if (!got) {
			nanosleep(&pause, NULL);
			if (pause.tv_nsec < 10000000)
				pause.tv_nsec *= 2;
			continue;
		}
		/* Reaped by whoever reaps this process's other children: no status then. */
		if (got < 0)
			snprintf(text, size, "ended");
		else if (WIFSIGNALED(status))
			snprintf(text, size, "ended by signal %d (%s)", WTERMSIG(status),
				 strsignal(WTERMSIG(status)));
		else
			snprintf(text, size, "ended with code %d", WEXITSTATUS(status));
		process->pid = 0;
		return;
	}
	snprintf(text, size, "closed its connection");
}

void ranks_process_free(struct ranks_process *process)
{
	char text[64];

	if (!process)
		return;
	channel_close(&process->channel);
	if (process->pid > 0)
		end_text(process, text, sizeof text); /* it ends by itself, within 1 s */
	if (process->pid > 0) {
		kill(process->pid, SIGKILL);
		waitpid(process->pid, NULL, 0);
	}
	free(process);
}

static int send_frame(struct ranks_server *server, struct frame head, const void *data)
{
	struct channel *channel = &server->process->channel;

	if (server->lost)
		return -ERR_NETWORK;
	if (channel_send(channel, &head, data) || channel_flush(channel, WRITE_MS))
		server->lost = true;
	return server->lost ? -ERR_NETWORK : 0;
}

static int keep(struct ranks_server *server, const struct frame *head, const void *data)
{
	struct kept *kept = malloc(sizeof *kept + head->size);
	uint64_t one = 1;

	if (!kept)
		return -1;
	kept->next = NULL;
	kept->head = *head;
	if (head->size)
		memcpy(kept->data, data, head->size);
	*server->last = kept;
	server->last = &kept->next;
	return write(server->wake_fd, &one, sizeof one) == sizeof one ? 0 : -1;
}

/* Ask and wait for the answer: *text malloced, NUL-terminated. 0, or its code with err. */
static int ask(struct ranks_server *server, struct frame head, const void *data, int timeout_ms,
	       char **text, struct error *err)
{
	struct channel *channel = &server->process->channel;
	const void *answer;
	int rc = send_frame(server, head, data);

	while (!rc) {
		int n = channel_next(channel, &head, &answer);

		if (n > 0 && head.kind == FRAME_REPLY) {
			*text = strndup(answer, head.size);
			if (!*text)
				return error_memory(err, "the PMIx server's answer");
			rc = head.number ? error_set(err, -head.number, "%s", *text) : 0;
			if (rc) {
				free(*text);
				*text = NULL;
			}
			return rc;
		}
		if (n > 0 && keep(server, &head, answer))
			return error_memory(err, "the PMIx server's messages");
		if (n)
			continue;
		n = channel_wait(channel, timeout_ms);
		if (!n)
			return error_set(err, ERR_UNAVAILABLE,
					 "the PMIx server did not answer within %d s",
					 timeout_ms / 1000);
		if (n < 0 || channel_fill(channel))
			break;
	}
	server->lost = true;
	return error_set(err, ERR_UNAVAILABLE, "the PMIx server's process is gone");
}

static json_t *job_json(const struct ranks_job *job)
{
	JSON_AUTO nodes = json_array();
	JSON_AUTO first = json_array();
	JSON_AUTO counts = json_array();
	JSON_AUTO cpus = job->cpus ? json_array() : json_null();

	for (int i = 0; i < job->node_count; i++) {
		json_array_append_new(nodes, json_string(job->nodes[i]));
		json_array_append_new(first, json_integer(job->first_rank[i]));
		json_array_append_new(counts, json_integer(job->rank_count[i]));
	}
	for (int i = 0; job->cpus && i < job->rank_count[job->node_index]; i++)
		json_array_append_new(cpus, json_text(job->cpus[i]));
	return json_pack("{s:s, s:s, s:i, s:i, s:O, s:O, s:O, s:O}", "name", job->name, "folder",
			 job->folder, "world", job->world_size, "index", job->node_index, "nodes",
			 nodes, "first", first, "counts", counts, "cpus", cpus);
}

static void server_free(struct ranks_server *server)
{
	while (server->first) {
		struct kept *kept = server->first;

		server->first = kept->next;
		free(kept);
	}
	while (server->serving) {
		struct serving *serving = server->serving;

		server->serving = serving->next;
		serving->done(serving->context, -ERR_NETWORK, NULL, 0);
		free(serving);
	}
	if (server->poll_fd >= 0)
		close(server->poll_fd);
	if (server->wake_fd >= 0)
		close(server->wake_fd);
	free(server);
}

static int watch(struct ranks_server *server)
{
	struct epoll_event event = {.events = EPOLLIN};

	server->poll_fd = epoll_create1(EPOLL_CLOEXEC);
	server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return server->poll_fd < 0 || server->wake_fd < 0 ||
	       epoll_ctl(server->poll_fd, EPOLL_CTL_ADD, server->wake_fd, &event) ||
	       epoll_ctl(server->poll_fd, EPOLL_CTL_ADD, server->process->channel.fd, &event);
}

int ranks_process_start(struct ranks_process *process, const struct ranks_job *job,
			const struct ranks_host *host, struct ranks_server **out, struct error *err)
{
	struct ranks_server *server = calloc(1, sizeof *server);
	JSON_AUTO json = job_json(job);
	char *text = json ? json_dumps(json, JSON_COMPACT) : NULL, *answer = NULL;
	int rc;

	if (!server || !text) {
		free(server);
		free(text);
		return error_memory(err, "the PMIx server");
	}
	server->process = process;
	server->host = *host;
	server->last = &server->first;
	if (watch(server))
		rc = error_set(err, ERR_UNAVAILABLE, "no descriptors for the PMIx server: %s",
			       strerror(errno));
	else
		rc = ask(server, (struct frame){.kind = FRAME_START, .size = strlen(text)}, text,
			 ANSWER_MS, &answer, err);
	free(text);
	free(answer);
	if (rc)
		server_free(server);
	else
		*out = server;
	return rc;
}

static int environment(struct ranks_server *server, int local_rank, struct env *changes,
		       struct error *err)
{
	JSON_AUTO list = NULL;
	json_t *entry;
	size_t i;
	char *text = NULL;
	int rc = ask(server, (struct frame){.kind = FRAME_ENVIRONMENT, .number = local_rank}, NULL,
		     ANSWER_MS, &text, err);

	if (rc)
		return rc;
	list = json_loads(text, 0, NULL);
	free(text);
	json_array_foreach(list, i, entry)
	{
		rc = env_set(changes, json_string_value(json_array_get(entry, 0)),
			     json_string_value(json_array_get(entry, 1)), ENV_FROM_BERTH,
			     json_string_value(json_array_get(entry, 2)), err);
		if (rc)
			return rc;
	}
	return list ? 0 : error_set(err, ERR_INTERNAL, "the PMIx server's environment is no JSON");
}

static int descriptor(struct ranks_server *server)
{
	return server->poll_fd;
}

static void serving_done(struct ranks_server *server, const struct frame *head, const void *data)
{
	for (struct serving **at = &server->serving; *at; at = &(*at)->next) {
		struct serving *serving = *at;

		if (serving->token != head->token)
			continue;
		*at = serving->next;
		serving->done(serving->context, head->number, data, head->size);
		free(serving);
		return;
	}
}

static void modex_done(struct ranks_server *server, uint32_t kind, void *token, int status,
		       const void *data, size_t size)
{
	send_frame(server,
		   (struct frame){.kind = kind,
				  .token = (uintptr_t)token,
				  .number = status,
				  .size = data ? size : 0},
		   data);
}

static void gather_done(struct ranks_server *server, void *token, int status, const void *data,
			size_t size)
{
	modex_done(server, FRAME_GATHER_DONE, token, status, data, size);
}

static void fetch_done(struct ranks_server *server, void *token, int status, const void *data,
		       size_t size)
{
	modex_done(server, FRAME_FETCH_DONE, token, status, data, size);
}

static void handle(struct ranks_server *server, const struct frame *head, const void *data)
{
	const struct ranks_host *host = &server->host;
	void *token = (void *)(uintptr_t)head->token;
	char *text;
	int rc;

	switch (head->kind) {
	case FRAME_GATHER:
		rc = host->gather(host->context, head->sequence, data, head->size, token);
		if (rc)
			gather_done(server, token, rc, NULL, 0);
		break;
	case FRAME_FETCH:
		rc = host->fetch(host->context, head->number, token);
		if (rc)
			fetch_done(server, token, rc, NULL, 0);
		break;
	case FRAME_ABORT:
		text = head->size ? strndup(data, head->size) : NULL;
		host->abort(host->context, head->number, (int)(int64_t)head->sequence,
			    text ? text : "");
		free(text);
		break;
	case FRAME_SERVED:
		serving_done(server, head, data);
		break;
	default:
		break; /* an answer nobody waits for any longer */
	}
}

static void dispatch(struct ranks_server *server)
{
	struct channel *channel = &server->process->channel;
	const void *data;
	struct frame head;
	eventfd_t count;
	bool was_lost = server->lost, gone;

	(void)!eventfd_read(server->wake_fd, &count);
	while (server->first) {
		struct kept *kept = server->first;

		server->first = kept->next;
		if (!server->first)
			server->last = &server->first;
		handle(server, &kept->head, kept->data);
		free(kept);
	}
	gone = channel_fill(channel) != 0;
	while (channel_next(channel, &head, &data) > 0)
		handle(server, &head, data);
	if (!gone && !(server->lost && !was_lost))
		return;
	server->lost = true;
	epoll_ctl(server->poll_fd, EPOLL_CTL_DEL, channel->fd, NULL);
	if (server->host.lost) {
		char text[96];

		end_text(server->process, text, sizeof text);
		server->host.lost(server->host.context, text);
	}
}

static int serve(struct ranks_server *server, int rank,
		 void (*done)(void *context, int status, const void *data, size_t size),
		 void *context)
{
	struct serving *serving = calloc(1, sizeof *serving);

	if (!serving)
		return -ERR_UNAVAILABLE;
	*serving = (struct serving){server->serving, ++server->questions, done, context};
	if (send_frame(server,
		       (struct frame){.kind = FRAME_SERVE, .token = serving->token, .number = rank},
		       NULL)) {
		free(serving);
		return -ERR_NETWORK;
	}
	server->serving = serving;
	return 0;
}

static void rank_ended(struct ranks_server *server, int local_rank)
{
	send_frame(server, (struct frame){.kind = FRAME_RANK_ENDED, .number = local_rank}, NULL);
}

static void missing(struct ranks_server *server, char *text, size_t size)
{
	char *answer = NULL;

	if (size)
		text[0] = '\0';
	if (!ask(server, (struct frame){.kind = FRAME_MISSING}, NULL, 1000, &answer, NULL) && size)
		snprintf(text, size, "%s", answer);
	free(answer);
}

static void stop(struct ranks_server *server)
{
	char *answer = NULL;

	if (!server)
		return;
	if (!server->lost)
		ask(server, (struct frame){.kind = FRAME_STOP}, NULL, STOP_MS, &answer, NULL);
	free(answer);
	server_free(server);
}

const struct ranks_server_ops ranks_server_process = {
	.environment = environment,
	.descriptor = descriptor,
	.dispatch = dispatch,
	.gather_done = gather_done,
	.fetch_done = fetch_done,
	.serve = serve,
	.rank_ended = rank_ended,
	.missing = missing,
	.stop = stop,
};

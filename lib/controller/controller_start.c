/* SPDX-License-Identifier: BSD-3-Clause */
/* The agents as processes: starting them by the engine, opening the door to them, their ends. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/clock.h"
#include "base/log.h"
#include "controller/controller_internal.h"
#include "overlay/secret_file.h"
#include "overlay/socket.h"
#include "overlay/tree.h"
#include "process/supervise.h"
#include "process/tmpdir.h"

#define WORDS_MAX 600	   /* of what an engine has printed: its end */
#define HEARD_MAX 16384	   /* in which an agent's complaint is looked for */
#define LOST_END_MS 300    /* for the agents' ends, where a node is lost */
#define ENGINE_END_MS 700  /* for an engine that was told to end */

struct engine_child *head_child(struct head *head, size_t node)
{
	for (size_t i = 0; i < head->child_count; i++)
		if (head->children[i].node_index == (long)node)
			return &head->children[i];
	return NULL;
}

/* Only the agents that still are ours keep their descendants. */
static void sweep(struct head *head, int deadline_ms, char *left, size_t size)
{
	pid_t *except = calloc(head->child_count + 1, sizeof *except);
	size_t count = 0;

	for (size_t i = 0; except && i < head->child_count; i++)
		if (head->children[i].pid > 0)
			except[count++] = head->children[i].pid;
	supervise_kill_descendants(except, except ? count : 0, deadline_ms, left, size);
	free(except);
}

/* What an engine's tool has printed, its last lines on one: "srun: error: ...; ...". */
static void child_words(const struct engine_child *child, char *text, size_t size)
{
	char words[WORDS_MAX + 1];
	off_t end = lseek(child->words_fd, 0, SEEK_END);
	off_t from = end > WORDS_MAX ? end - WORDS_MAX : 0;
	ssize_t n = end > 0 ? pread(child->words_fd, words, WORDS_MAX, from) : 0;

	text[0] = '\0';
	for (words[n > 0 ? n : 0] = 0; n > 0 && words[n - 1] == '\n'; n--)
		words[n - 1] = 0;
	for (char *line = words, *next; n > 0 && line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		/* Cut at the front, a line says nothing. */
		if (!*line || (from && line == words && next))
			continue;
		/* Nothing that moves the cursor of who reads it. */
		for (char *at = line; *at; at++)
			if ((unsigned char)*at < ' ' || *at == 0x7f)
				*at = ' ';
		size_t used = strlen(text);

		snprintf(text + used, size - used, "%s%s", used ? "; " : "", line);
	}
}

static void describe_end(const struct head *head, const struct engine_child *child, int status,
			 char *text, size_t size)
{
	char words[WORDS_MAX + 1];

	/* A tool that stands for the agent: what it says is all that there is. */
	if (child->words_fd >= 0) {
		child_words(child, words, sizeof words);
		snprintf(text, size,
			 WIFSIGNALED(status) ? "%s was killed by signal %d%s%s"
					     : "%s ended with code %d%s%s",
			 head->options.engine->name,
			 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
			 words[0] ? ", saying: " : "", words);
		return;
	}
	if (WIFSIGNALED(status))
		snprintf(text, size, "its agent was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(text, size, "its agent ended with code %d", WEXITSTATUS(status));
}

static void describe_engine(const struct head *head, int status, char *text, size_t size)
{
	char words[700];
	bool named = false;

	head_words(head, words, sizeof words);
	if (WIFSIGNALED(status))
		snprintf(text, size, "%s was killed by signal %d", head->options.engine->name,
			 WTERMSIG(status));
	else
		snprintf(text, size, "%s ended with code %d before it was there",
			 head->options.engine->name, WEXITSTATUS(status));
	if (words[0])
		snprintf(text + strlen(text), size - strlen(text), ", saying: %s", words);
	/* It may be one of these that is of another job, or made up. */
	for (const char *const *name = head->options.engine->asked_by; name && *name; name++) {
		const char *value = env_get(head->options.env, *name);

		if (value && *value) {
			snprintf(text + strlen(text), size - strlen(text), "%s %s '%.60s'",
				 named ? "," : "; it was asked by", *name, value);
			named = true;
		}
	}
}

/* "berth: no agent on n2: it is ..." of a node that is still waited for. */
static void hear(struct head *head, char *line)
{
	char *name = line + strlen(ENGINE_NO_AGENT), *why;

	if (strncmp(line, ENGINE_NO_AGENT, strlen(ENGINE_NO_AGENT)) || !(why = strstr(name, ": ")))
		return;
	*why = '\0';
	for (size_t i = 0; i < head->count; i++)
		if (!head->nodes[i].greeted && !strcmp(head->options.alloc->nodes[i].name, name))
			head_lose(head, i, why + 2);
}

void head_listen_to_engine(struct head *head)
{
	if (head->placed == head->count)
		return;
	for (size_t i = 0; i < head->child_count; i++) {
		int fd = head->children[i].words_fd;
		char words[HEARD_MAX + 1];
		ssize_t n = fd < 0 ? 0 : pread(fd, words, HEARD_MAX, 0);

		words[n > 0 ? n : 0] = '\0';
		for (char *line = words, *next; line; line = next) {
			next = strchr(line, '\n');
			if (!next)
				break; /* it is still being written */
			*next++ = '\0';
			hear(head, line);
		}
	}
}

void head_reap(struct head *head)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		char why[900];

		for (size_t i = 0; i < head->child_count; i++) {
			struct engine_child *child = &head->children[i];

			if (child->pid != pid)
				continue;
			child->pid = 0;
			describe_end(head, child, status, why, sizeof why);
			if (child->node_index < 0) {
				char words[1400];

				head_listen_to_engine(head);
				/* The engine itself, for all nodes. Its code proves nothing, but
				 * agents that are not there now will not come. */
				describe_engine(head, status, words, sizeof words);
				for (size_t n = 0; n < head->count; n++)
					if (!head->nodes[n].greeted &&
					    (!child->serves || child->serves[n]))
						head_lose(head, n, words);
				continue;
			}
			struct head_node *node = &head->nodes[child->node_index];

			if (!head->stopping && head->options.engine->one_machine) {
				sweep(head, 2000, NULL, 0);
				folder_remove(node->folder);
			}
			head_lose(head, (size_t)child->node_index, why);
		}
	}
}

static void on_friend(void *context, struct link *link)
{
	struct head *head = context;

	if (head->unknown_count >= head->count + HEAD_STRANGERS) {
		link_close(link);
		return;
	}
	link->owner = &head->owner;
	head->unknown[head->unknown_count++] = link;
}

static void on_refused(void *context, const char *text)
{
	struct head *head = context;

	head->events.note(head->events.context, text);
}

void head_words(const struct head *head, char *text, size_t size)
{
	text[0] = 0;
	for (size_t i = 0; i < head->child_count; i++) {
		size_t used = strlen(text);

		if (head->children[i].words_fd < 0 || used + 3 > size)
			continue;
		if (used)
			strcpy(text + used, "; ");
		child_words(&head->children[i], text + strlen(text), size - strlen(text));
		if (used && !text[used + 2])
			text[used] = '\0';
	}
}

/* In the child of an engine that does not exec. */
static int be_agent(void *context, size_t node_index, int fd)
{
	struct head *head = context;
	struct error err = {0};
	struct agent_params params = {
		.node_index = node_index,
		.name = head->options.alloc->nodes[node_index].name,
		.job = head->options.alloc->job_id,
		.secret = head->secret,
		.fd = fd,
		.node_timeout_ms = head->options.node_timeout_ms,
		.env = head->options.env,
	};

	if (!agent_run(&params, &err))
		return 0;
	log_line(LOG_ERROR, "agent", "%s", err.text);
	return err.code;
}

static int start_engine(struct head *head, struct error *err)
{
	char secret[65], address[4096] = "";
	struct engine_job job = {
		.alloc = head->options.alloc,
		.env = head->options.env,
		.program = head->options.program,
		.job = head->options.alloc->job_id,
		.secret = secret,
		.node_timeout_ms = head->options.node_timeout_ms,
		.agent = be_agent,
		.context = head,
	};
	int rc = 0;

	wire_secret_format(&head->secret, secret);
	if (head->options.engine->by_cookie) {
		job.secret = NULL;
		job.recipe = head->recipe;
	}
	if (head->options.engine->one_machine)
		snprintf(address, sizeof address, "127.0.0.1:%d", head_port(head));
	else
		rc = socket_own_addresses(head_port(head), address, sizeof address, err);
	/* The others have been told where the head is; only its own agent comes by this. */
	if (rc && head->options.engine->by_file) {
		snprintf(address, sizeof address, "127.0.0.1:%d", head_port(head));
		rc = 0;
	}
	job.head = address;
	if (!rc)
		rc = head->options.engine->start(&job, &head->children, &head->child_count, err);
	explicit_bzero(secret, sizeof secret);
	for (size_t i = 0; !rc && i < head->child_count; i++) {
		struct link *link;

		if (head->children[i].fd < 0)
			continue;
		rc = link_open(head->loop, head->children[i].fd, false, WIRE_ACCEPTS, &head->secret,
			       head->options.alloc->job_id, &head->owner, &link, err);
		if (!rc)
			head->unknown[head->unknown_count++] = link;
	}
	return rc;
}

void head_take_back(struct head *head)
{
	if (head->lent[0])
		unlink(head->lent);
	head->lent[0] = '\0';
}

/* Of PBS's cookie; where there is none, in a file for the agents. */
static int make_recipe(struct head *head, struct error *err)
{
	const char *cookie = env_get(head->options.env, ENGINE_COOKIE);
	char nonce[17];
	int rc;

	if (!cookie) {
		rc = secret_file_lend(head->options.env, &head->secret, head->lent, sizeof head->lent - 8,
				      err);
		if (rc)
			head->lent[0] = '\0';
		else
			snprintf(head->recipe, sizeof head->recipe, "file:%s", head->lent);
		return rc;
	}
	wire_secret_fingerprint(&head->secret, nonce);
	snprintf(head->recipe, sizeof head->recipe, "cookie:%s", nonce);
	return wire_secret_derive(cookie, head->options.alloc->job_id, nonce, &head->secret, err);
}

/* Of this run alone, also where it is made of PBS's cookie. */
static int make_secret(struct head *head, struct error *err)
{
	const struct head_options *options = &head->options;
	char path[4096];
	bool made = false;
	int rc = options->engine->by_file
			 ? secret_file_read(options->env, true, &head->secret, &made, path,
					    sizeof path, err)
			 : wire_secret_make(&head->secret, err);

	if (!rc && made) {
		char text[4300];

		snprintf(text, sizeof text,
			 "made the secret %s: copy it to the other machines, unless they see this "
			 "home", path);
		head->events.note(head->events.context, text);
	}
	return !rc && options->engine->by_cookie ? make_recipe(head, err) : rc;
}

int head_start(struct loop *loop, const struct head_options *options,
	       const struct head_events *events, struct head **out, struct error *err)
{
	struct head *head = calloc(1, sizeof *head);
	struct rlimit limit;
	int rc;

	if (!head)
		return error_memory(err, "the head");
	head->loop = loop;
	head->options = *options;
	head->events = *events;
	head->count = options->alloc->node_count;
	head->fanout = options->fanout ? options->fanout : TREE_FANOUT;
	head->owner = head_link_owner;
	head->owner.context = head;
	head->nodes = calloc(head->count, sizeof *head->nodes);
	head->unknown = calloc(2 * head->count + HEAD_STRANGERS, sizeof *head->unknown);
	rc = head->nodes && head->unknown ? make_secret(head, err) : error_memory(err, "the nodes");
	if (!rc)
		rc = supervise_adopt(err);
	if (!rc && !options->engine->by_socket_pair) {
		struct listener_events door = {head, on_friend, on_refused};
		int port = 0;

		if (options->engine->by_file && options->alloc->meet)
			rc = alloc_read_meet("the head", options->alloc->meet, NULL, 0, &port, err);
		if (!rc)
			rc = listener_open(loop, port, &head->secret, options->alloc->job_id,
					   head->count + listener_probes(head->count) + HEAD_STRANGERS,
					   &door, &head->listener, err);
	}
	if (!rc)
		rc = start_engine(head, err);
	/* Before the tree is made every agent is connected here. Not for the agents to inherit. */
	if (!options->engine->by_socket_pair && !getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (rc) {
		head_stop(head, 0, NULL, 0);
		return rc;
	}
	*out = head;
	return 0;
}

static void wait_children(struct head *head, int timeout_ms)
{
	int64_t until = clock_now_ms() + timeout_ms;

	for (;;) {
		size_t alive = 0;

		head_reap(head);
		for (size_t i = 0; i < head->child_count; i++)
			alive += head->children[i].pid > 0;
		if (!alive || clock_now_ms() >= until)
			return;
		usleep(alive > 4 ? 5000 : 500);
	}
}

void head_stop(struct head *head, int timeout_ms, char *left, size_t size)
{
	if (!head)
		return;
	head->stopping = true;
	if (left && size)
		left[0] = 0;
	for (size_t i = 0; i < head->unknown_count; i++)
		link_close(head->unknown[i]);
	for (size_t i = 0; i < head->count && head->nodes; i++) {
		if (!head->nodes[i].link)
			continue;
		link_finish(head->nodes[i].link, timeout_ms < 500 ? timeout_ms : 500);
		link_close(head->nodes[i].link);
	}
	listener_close(head->listener);
	head_take_back(head);
	for (size_t i = 0; i < head->count && head->nodes; i++)
		if (head->nodes[i].lost && timeout_ms > LOST_END_MS)
			timeout_ms = LOST_END_MS; /* its engine may wait for it for ever */
	wait_children(head, timeout_ms);
	/* An engine that waits for a node that is lost: told to, it ends the step at the scheduler
	 * as well. */
	bool told = false;

	for (size_t i = 0; i < head->child_count; i++)
		if (head->children[i].pid > 0 && head->children[i].node_index < 0)
			told |= !engine_kill(&head->children[i], SIGTERM);
	if (told)
		wait_children(head, ENGINE_END_MS);
	for (size_t i = 0; i < head->child_count; i++)
		if (head->children[i].pid > 0)
			engine_kill(&head->children[i], SIGKILL);
	wait_children(head, 2000);
	if (head->options.engine->one_machine) {
		supervise_kill_descendants(NULL, 0, 2000, left, size);
		for (size_t i = 0; i < head->count && head->nodes; i++)
			if (head->nodes[i].folder[0])
				folder_remove(head->nodes[i].folder);
	}
	wire_secret_forget(&head->secret);
	for (size_t i = 0; i < head->child_count; i++) {
		if (head->children[i].words_fd >= 0)
			close(head->children[i].words_fd);
		free(head->children[i].serves);
	}
	free(head->children);
	free(head->unknown);
	free(head->nodes);
	free(head);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/heartbeats.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/json.h"
#include "process/heartbeat.h"
#include "process/process_tree.h"

#define POLL_MS 1000
#define STACKS_MAX (48u << 10) /* largest size of one node's stack traces */
#define STACKS_RANKS 2	       /* ranks of one node whose stacks are read */
#define STACKS_NODES 4 /* if no rank is known to be behind, read stacks on the first nodes only */

struct rank_heartbeat {
	struct heartbeat heartbeat;
	pid_t pid;
};

struct agent_heartbeats {
	struct loop *loop;
	struct agent_uplink *uplink;
	const char *dir;
	const struct agent_job *job;
	size_t count; /* number of ranks on this node */
	int64_t polled_ms;
	/* the tool that DUMP_STACKS started */
	struct loop_source stacks;
	pid_t stack_tool;
	struct bytes text;
	json_t *states;
	struct rank_heartbeat list[]; /* [count] */
};

int agent_heartbeats_new(struct loop *loop, struct agent_uplink *uplink, const char *dir,
			 const struct agent_job *job, struct agent_heartbeats **out,
			 struct error *err)
{
	size_t count = agent_job_rank_count(job);
	struct agent_heartbeats *heartbeats =
		calloc(1, sizeof *heartbeats + count * sizeof *heartbeats->list);

	if (!heartbeats)
		return error_memory(err, "the ranks' heartbeats");
	heartbeats->loop = loop;
	heartbeats->uplink = uplink;
	heartbeats->dir = dir;
	heartbeats->job = job;
	heartbeats->count = count;
	heartbeats->stacks.fd = -1;
	for (size_t i = 0; i < count; i++)
		heartbeats->list[i].heartbeat.steps = -1;
	*out = heartbeats;
	return 0;
}

void agent_heartbeats_started(struct agent_heartbeats *heartbeats, int local_rank, pid_t pid)
{
	heartbeats->list[local_rank].pid = pid;
}

void agent_heartbeats_poll(struct agent_heartbeats *heartbeats, int64_t now_ms, bool at_once)
{
	bool new = false;

	if (!at_once && now_ms - heartbeats->polled_ms < POLL_MS)
		return;
	heartbeats->polled_ms = now_ms;
	for (size_t i = 0; i < heartbeats->count; i++) {
		char path[PATH_MAX];

		heartbeat_path(heartbeats->dir, (int)i, path, sizeof path);
		new |= heartbeat_poll(path, &heartbeats->list[i].heartbeat);
	}
	if (!new)
		return;
	json_t *steps = json_array(), *status_texts = json_array();

	for (size_t i = 0; i < heartbeats->count; i++) {
		const struct heartbeat *heartbeat = &heartbeats->list[i].heartbeat;

		json_array_append_new(steps, heartbeat->steps < 0 ? json_null()
								  : json_real(heartbeat->steps));
		json_array_append_new(status_texts, json_text(heartbeat->status_text));
	}
	agent_uplink_report(heartbeats->uplink, MESSAGE_PROGRESS,
			    json_pack("{s:o, s:o}", "steps", steps, "words", status_texts));
}

/* ---- stacks of ranks without progress ---- */

/* Choose the process that represents a rank: a stopped one, else the one that has used the most
 * CPU time. A rank may be a shell that waits for its program. */
static pid_t main_process(const struct process_tree *list, pid_t rank, char *state)
{
	unsigned long long most = 0;
	pid_t found = rank;

	*state = '?';
	for (size_t i = 0; i < list->count; i++) {
		const struct process_tree_entry *process = &list->items[i];
		char path[64], text[512];
		unsigned long long user = 0, kernel = 0;

		if (process->group != rank || !process->alive)
			continue;
		snprintf(path, sizeof path, "/proc/%d/stat", (int)process->pid);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

		if (fd >= 0)
			close(fd);
		text[n > 0 ? n : 0] = '\0';
		const char *behind = strrchr(text, ')');

		if (behind)
			sscanf(behind + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
			       &user, &kernel);
		if (process->state == 'T' || process->state == 't') {
			*state = process->state;
			return process->pid;
		}
		if (user + kernel >= most) {
			most = user + kernel;
			found = process->pid;
			*state = process->state;
		}
	}
	return found;
}

static void send_stacks(struct agent_heartbeats *heartbeats)
{
	char *text = heartbeats->text.size
			     ? strndup((const char *)heartbeats->text.data, heartbeats->text.size)
			     : NULL;

	agent_uplink_report(
		heartbeats->uplink, MESSAGE_STACKS,
		json_pack("{s:o, s:o}", "states", heartbeats->states, "stacks", json_text(text)));
	heartbeats->states = NULL;
	bytes_drop(&heartbeats->text, heartbeats->text.size);
	free(text);
}

static void stacks_ready(struct loop_source *source, uint32_t events)
{
	struct agent_heartbeats *heartbeats =
		(struct agent_heartbeats *)((char *)source -
					    offsetof(struct agent_heartbeats, stacks));
	char buffer[4096];
	ssize_t n;

	(void)events;
	while ((n = read(source->fd, buffer, sizeof buffer)) > 0)
		if (heartbeats->text.size < STACKS_MAX)
			bytes_add(&heartbeats->text, buffer, (size_t)n);
	if (n < 0)
		return; /* EAGAIN */
	loop_close(heartbeats->loop, source);
	send_stacks(heartbeats);
}

/* Arguments are RANK:PID. Each tool has its own time limit; the agent's loop keeps running
 * meanwhile. */
static const char script[] =
	"for entry; do pid=${entry#*:}; echo \"rank ${entry%%:*}, process $pid"
	" ($(tr '\\0' ' ' <\"/proc/$pid/cmdline\" | cut -c 1-80))\";"
	" if command -v eu-stack >/dev/null; then timeout -k 1 6 eu-stack -p \"$pid\" -n 40;"
	" elif command -v gdb >/dev/null; then timeout -k 1 6 gdb -p \"$pid\" -batch -nx"
	" -iex 'set debuginfod enabled off' -ex 'set pagination off' -ex 'thread apply all "
	"backtrace 40'"
	" | grep -E '^(Thread|#)';"
	" else echo 'no stack: neither eu-stack nor gdb is here'; cat \"/proc/$pid/stack\"; fi;"
	" done 2>/dev/null";

static int start_stack_tool(struct agent_heartbeats *heartbeats, const struct env *env,
			    char *const *entries, struct error *err)
{
	const char *argv[4 + STACKS_RANKS + 1] = {"sh", "-c", script, "sh"};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none;
	char **envp = env_to_envp(env);
	int ends[2], rc;

	for (size_t i = 0; entries[i]; i++)
		argv[4 + i] = entries[i];
	if (!envp || pipe2(ends, O_CLOEXEC | O_NONBLOCK)) {
		free(envp);
		return error_memory(err, "stack traces");
	}
	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, ends[1], 1);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	rc = posix_spawnp(&heartbeats->stack_tool, "sh", &files, &attributes, (char *const *)argv,
			  envp);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	free(envp);
	close(ends[1]);
	heartbeats->stacks.ready = stacks_ready;
	if (!rc)
		rc = loop_add(heartbeats->loop, &heartbeats->stacks, ends[0], EPOLLIN, err);
	if (rc)
		close(ends[0]);
	return rc;
}

static bool is_named(const json_t *ranks, int rank)
{
	json_t *entry;
	size_t i;

	json_array_foreach(ranks, i, entry) if (json_integer_value(entry) == rank) return true;
	return false;
}

void agent_heartbeats_dump_stacks(struct agent_heartbeats *heartbeats, const struct env *env,
				  const json_t *text)
{
	json_t *ranks = NULL;
	struct process_tree list = {0};
	char *entries[STACKS_RANKS + 1] = {0};
	size_t count = 0;

	if (!heartbeats || heartbeats->states ||
	    json_get_array("DUMP_STACKS", text, "ranks", &ranks, NULL))
		return;
	heartbeats->states = json_array();
	process_tree_read(NULL, 0, &list);
	for (size_t i = 0; i < heartbeats->count; i++) {
		int rank = agent_job_rank(heartbeats->job, i);
		char state[2] = "";
		pid_t pid = main_process(&list, heartbeats->list[i].pid, state);
		bool behind = json_array_size(ranks)
				      ? is_named(ranks, rank)
				      : !i && heartbeats->job->layout.node_index < STACKS_NODES;

		json_array_append_new(heartbeats->states, json_text(state));
		if (count < STACKS_RANKS && (behind || state[0] == 'T') &&
		    asprintf(&entries[count], "%d:%d", rank, (int)pid) >= 0)
			count++;
	}
	process_tree_free(&list);
	if (!count || start_stack_tool(heartbeats, env, entries, NULL))
		send_stacks(heartbeats);
	for (size_t i = 0; i < count; i++)
		free(entries[i]);
}

void agent_heartbeats_free(struct agent_heartbeats *heartbeats)
{
	if (!heartbeats)
		return;
	loop_close(heartbeats->loop, &heartbeats->stacks);
	bytes_free(&heartbeats->text);
	json_decref(heartbeats->states);
	free(heartbeats);
}

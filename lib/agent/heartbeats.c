/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/heartbeats.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/joined.h"
#include "base/bytes.h"
#include "base/json.h"
#include "plan/plan.h"
#include "process/heartbeat.h"
#include "process/process_tree.h"

#define POLL_MS 1000
#define JOINED_FIRST_MS 250 /* a program with JAX runs longer */
#define JOINED_MS 2000
#define JOINED_OFTEN_MS 40000  /* so long every JOINED_MS, then more rarely */
#define STACKS_MAX (48u << 10) /* largest size of one node's stack traces */

struct rank_heartbeat {
	struct heartbeat heartbeat;
	pid_t pid;
};

struct agent_heartbeats {
	struct loop *loop;
	struct agent_uplink *uplink;
	const char *dir;
	const struct agent_job *job;
	size_t count;		   /* number of ranks on this node */
	struct loop_timer second;  /* to read the files */
	struct loop_source stacks; /* of the tool that DUMP_STACKS started */
	struct bytes text;
	json_t *states;
	/* which ranks have joined */
	int port;
	int64_t joined_begin_ms;
	struct loop_timer look_for_joined;
	char *joined;		      /* [count + 1] */
	struct rank_heartbeat list[]; /* [count] */
};

static void on_second(struct loop_timer *timer);
static void on_look_for_joined(struct loop_timer *timer);

int agent_heartbeats_new(struct loop *loop, struct agent_uplink *uplink, const char *dir,
			 const struct agent_job *job, int port, struct agent_heartbeats **out,
			 struct error *err)
{
	size_t count = agent_job_rank_count(job);
	struct agent_heartbeats *heartbeats =
		calloc(1, sizeof *heartbeats + count * sizeof *heartbeats->list);

	if (heartbeats)
		heartbeats->joined = calloc(1, count + 1);
	if (!heartbeats || !heartbeats->joined) {
		free(heartbeats);
		return error_memory(err, "the ranks' heartbeats");
	}
	heartbeats->port = port;
	heartbeats->loop = loop;
	heartbeats->uplink = uplink;
	heartbeats->dir = dir;
	heartbeats->job = job;
	heartbeats->count = count;
	heartbeats->stacks.fd = -1;
	heartbeats->look_for_joined.due = on_look_for_joined;
	heartbeats->second.due = on_second;
	loop_timer_after(loop, &heartbeats->second, POLL_MS);
	for (size_t i = 0; i < count; i++)
		heartbeats->list[i].heartbeat.steps = -1;
	*out = heartbeats;
	return 0;
}

void agent_heartbeats_started(struct agent_heartbeats *heartbeats, int local_rank, pid_t pid)
{
	heartbeats->list[local_rank].pid = pid;
}

void agent_heartbeats_poll(struct agent_heartbeats *heartbeats)
{
	bool new = false;

	for (size_t i = 0; i < heartbeats->count; i++) {
		char path[PATH_MAX];

		snprintf(path, sizeof path, "%s/" PLAN_FILE_HEARTBEAT, heartbeats->dir, (int)i);
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
			    &(struct message_progress){steps, status_texts});
}

static void on_second(struct loop_timer *timer)
{
	struct agent_heartbeats *heartbeats = LOOP_OWNER(timer, struct agent_heartbeats, second);

	loop_timer_after(heartbeats->loop, timer, POLL_MS);
	agent_heartbeats_poll(heartbeats);
}

static void report_joined(const struct agent_heartbeats *heartbeats)
{
	agent_uplink_report(heartbeats->uplink, MESSAGE_JOINED,
			    &(struct message_joined){heartbeats->joined});
}

void agent_heartbeats_watch_joined(struct agent_heartbeats *heartbeats)
{
	heartbeats->joined_begin_ms = loop_now_ms(heartbeats->loop);
	if (heartbeats->port)
		loop_timer_after(heartbeats->loop, &heartbeats->look_for_joined, JOINED_FIRST_MS);
}

/* The ranks' process groups; malloced, NULL if memory is out. */
static pid_t *groups_of(const struct agent_heartbeats *heartbeats)
{
	pid_t *groups = calloc(heartbeats->count, sizeof *groups);

	for (size_t i = 0; groups && i < heartbeats->count; i++)
		groups[i] = heartbeats->list[i].pid;
	return groups;
}

static void on_look_for_joined(struct loop_timer *timer)
{
	struct agent_heartbeats *heartbeats =
		LOOP_OWNER(timer, struct agent_heartbeats, look_for_joined);
	int64_t age_ms = loop_now_ms(heartbeats->loop) - heartbeats->joined_begin_ms;
	size_t count = heartbeats->count;
	pid_t *groups;

	loop_timer_after(heartbeats->loop, timer,
			 age_ms < JOINED_MS	    ? JOINED_FIRST_MS
			 : age_ms < JOINED_OFTEN_MS ? JOINED_MS
						    : 15 * JOINED_MS);
	groups = groups_of(heartbeats);
	if (!groups)
		return;
	char *before = strdup(heartbeats->joined);

	joined_read(groups, count, heartbeats->port, heartbeats->joined);
	free(groups);
	if (!before || strcmp(before, heartbeats->joined) != 0)
		report_joined(heartbeats);
	free(before);
	if (strspn(heartbeats->joined, (char[]){JOINED_YES, '\0'}) == count) {
		heartbeats->port = 0; /* all have */
		loop_timer_stop(timer);
	}
}

void agent_heartbeats_ended(struct agent_heartbeats *heartbeats)
{
	loop_timer_stop(&heartbeats->second);
	loop_timer_stop(&heartbeats->look_for_joined);
	if (!heartbeats->port || !heartbeats->joined[0] || !joined_before(heartbeats->port))
		return;
	memset(heartbeats->joined, JOINED_YES, heartbeats->count);
	report_joined(heartbeats);
}

/* ---- stacks of ranks without progress ---- */

/* A copy of its parent, such as a DataLoader's worker? */
static bool is_worker(const struct process_tree *list, const struct process_tree_entry *process)
{
	char path[64], own[PATH_MAX], parents[PATH_MAX];
	size_t i = 0;

	while (i < list->count && list->items[i].pid != process->parent)
		i++;
	if (i == list->count || list->items[i].group != process->group)
		return false;
	snprintf(path, sizeof path, "/proc/%d/exe", (int)process->pid);
	ssize_t size = readlink(path, own, sizeof own);
	snprintf(path, sizeof path, "/proc/%d/exe", (int)process->parent);
	return size > 0 && readlink(path, parents, sizeof parents) == size &&
	       !memcmp(own, parents, (size_t)size);
}

/* Choose the process that represents a rank: a stopped one, else the one that has used the most
 * CPU time. A rank may be a shell that waits for its program. 0: none is left. */
static pid_t main_process(const struct process_tree *list, pid_t rank, char *state)
{
	unsigned long long most = 0;
	pid_t found = 0;

	*state = '?';
	for (size_t i = 0; i < list->count; i++) {
		const struct process_tree_entry *process = &list->items[i];

		if (process->group != rank || !process->alive)
			continue;
		if (process->state == 'T' || process->state == 't') {
			*state = process->state;
			return process->pid;
		}
		if (process->used >= most && !is_worker(list, process)) {
			most = process->used;
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

	agent_uplink_report(heartbeats->uplink, MESSAGE_STACKS,
			    &(struct message_stacks){heartbeats->states, text});
	heartbeats->states = NULL;
	bytes_drop(&heartbeats->text, heartbeats->text.size);
	free(text);
}

static void stacks_ready(struct loop_source *source, uint32_t events)
{
	struct agent_heartbeats *heartbeats = LOOP_OWNER(source, struct agent_heartbeats, stacks);
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

/* Arguments are RANK:PID. All ranks together have 20 s; the agent's loop keeps running meanwhile.
 * py-spy needs 0.1 s for a Python program, gdb many seconds for one with PyTorch. The Python
 * program's own directory is searched, too, since a virtual environment need not be in PATH; not if
 * it is relative, as others may write in the agent's working directory. All of them wait for a
 * process that is blocked in the kernel; on FUSE, it is so only once a tool has tried to stop
 * it. */
static const char script[] =
	"end=$(($(date +%s) + 20)) how=--full-filenames\n"
	"[ \"$0\" != gentle ] || how=\"$how --nonblocking\"\n"
	/* limited SECONDS TOOL ARGUMENT...: sets out */
	"limited() {\n"
	"	most=$1 left=$((end - $(date +%s)))\n"
	"	shift\n"
	"	[ $left -gt 0 ] || { out='no stack: no time was left for this rank'; return; }\n"
	"	[ $left -lt $most ] || left=$most\n"
	"	out=$(timeout -k 1 $left \"$@\") && return\n"
	"	[ $? -lt 124 ] || out=\"$out\n"
	"no stack: ${1##*/} did not end within $left s\"\n"
	"}\n"
	"blocked() {\n"
	"	grep -q '^State:.D' \"/proc/$pid/status\" &&\n"
	"		out='no stack: blocked in the kernel (state D)'\n"
	"}\n"
	"for entry; do\n"
	"	pid=${entry#*:}\n"
	"	line=$(tr '\\0' ' ' <\"/proc/$pid/cmdline\")\n"
	"	program=${line%% *}\n"
	"	[ $pid != 0 ] || { echo \"rank ${entry%%:*}, no process\"; continue; }\n"
	"	echo \"rank ${entry%%:*}, process $pid ($(echo \"$line\" | cut -c 1-80))\"\n"
	"	out=\n"
	"	blocked\n"
	"	for spy in \"${program%/*}/py-spy\" py-spy; do\n"
	"		case $program,$out in *python*,) ;; *) continue ;; esac\n"
	"		case $spy in /* | py-spy) ;; *) continue ;; esac\n"
	"		command -v \"$spy\" >/dev/null && limited 8 \"$spy\" dump $how --pid "
	"\"$pid\"\n"
	"	done\n"
	"	case $program,$0,$out in *python*,sh,)\n"
	"		echo 'to see lines of Python, run: pip install py-spy' "
	";;\n"
	"	esac\n"
	"	if [ \"$out\" ]; then :\n"
	"	elif [ \"$0\" = gentle ]; then out='no stack: py-spy is not installed'\n"
	"	elif command -v eu-stack >/dev/null; then limited 20 eu-stack -p \"$pid\" -n 40\n"
	"	elif command -v gdb >/dev/null; then\n"
	"		limited 20 gdb -p \"$pid\" -batch -nx -iex 'set debuginfod enabled off'"
	" -ex 'set pagination off' -ex 'thread apply all backtrace 40'\n"
	"		out=$(echo \"$out\" | grep -E '^(Thread|#|no stack)')\n"
	"	else\n"
	"		out=$(echo 'no stack: none of py-spy, eu-stack and gdb is installed'"
	"; cat \"/proc/$pid/stack\")\n"
	"	fi\n"
	"	case $out in *'no stack'*) blocked ;; esac\n"
	/* /opt/venv/lib/python3.11/site-packages/torch/x.py: see explain/stacks.c */
	"	echo \"${out:-no stack: this user may not trace the process}\" |\n"
	"		sed "
	"'s#(/[^()]*/\\(\\(site\\|dist\\)-packages/\\|python3[.0-9]*/\\)#(\\1#'\n"
	"done 2>/dev/null\n";

/* entries: of the script, count of them. */
static int start_stack_tool(struct agent_heartbeats *heartbeats, const struct env *env,
			    const char *const *entries, size_t count, bool gentle,
			    struct error *err)
{
	const char *const begin[] = {"sh", "-c", script, gentle ? "gentle" : "sh", NULL};
	struct words words = {0};
	char **argv;
	int ends[2], rc;
	pid_t pid;

	words_add_list(&words, begin);
	for (size_t i = 0; i < count; i++)
		words_add(&words, "%s", entries[i]);
	argv = words_end(&words);
	if (!argv || pipe2(ends, O_CLOEXEC | O_NONBLOCK)) {
		free(argv);
		return error_memory(err, "stack traces");
	}
	rc = env_spawn(env, "sh", argv, (const int[]){-1, ends[1], STDERR_FILENO}, &pid);
	free(argv);
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
				  const struct message_dump_stacks *request)
{
	struct process_tree list = {0};
	size_t first = 0, last, count;
	char **entries;
	pid_t *groups;

	if (!heartbeats || heartbeats->states)
		return;
	count = last = heartbeats->count;
	entries = calloc(count, sizeof *entries);
	heartbeats->states = json_array();
	process_tree_read(NULL, 0, &list);
	groups = groups_of(heartbeats);
	if (groups)
		process_tree_adopt(&list, groups, count);
	free(groups);
	/* Ranks that are behind come first. */
	for (size_t i = count; entries && i-- > 0;) {
		int rank = agent_job_rank(heartbeats->job, i);
		char state[2] = "", entry[32];
		pid_t pid = main_process(&list, heartbeats->list[i].pid, state);
		bool behind = is_named(request->ranks, rank) || state[0] == 'T';

		json_array_insert_new(heartbeats->states, 0, json_text(state));
		snprintf(entry, sizeof entry, "%d:%d", rank, (int)pid);
		entries[behind ? first++ : --last] = strdup(entry);
	}
	process_tree_free(&list);
	for (size_t i = 0; entries && i < count; i++)
		if (!entries[i])
			count = i; /* out of memory */
	if (!entries || start_stack_tool(heartbeats, env, (const char *const *)entries, count,
					 request->gentle, NULL))
		send_stacks(heartbeats);
	for (size_t i = 0; entries && i < heartbeats->count; i++)
		free(entries[i]);
	free(entries);
}

void agent_heartbeats_free(struct agent_heartbeats *heartbeats)
{
	if (!heartbeats)
		return;
	loop_timer_stop(&heartbeats->second);
	loop_timer_stop(&heartbeats->look_for_joined);
	loop_close(heartbeats->loop, &heartbeats->stacks);
	bytes_free(&heartbeats->text);
	json_decref(heartbeats->states);
	free(heartbeats->joined);
	free(heartbeats);
}

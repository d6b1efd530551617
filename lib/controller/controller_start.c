/* SPDX-License-Identifier: BSD-3-Clause */
/* The agents as processes: start them through the launcher, listen for them, and handle their
 * exits. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "controller/controller_internal.h"
#include "hostlist/hostlist.h"
#include "inventory/sys.h"
#include "overlay/secret.h"
#include "overlay/socket.h"
#include "overlay/tree.h"
#include "process/supervise.h"
#include "process/tmpdir.h"

#define KEPT_MAX (1 << 20)   /* beyond this, output that was read is freed */
#define SCAN_MAX 16384	     /* how much of that output is read at once */
#define LOST_END_MS 300	     /* how long to wait for the agents to exit when a node is lost */
#define AGAIN_MS 2000	     /* before a tool is started again */
#define LAUNCHER_EXIT_MS 700 /* how long to wait for a launcher tool after SIGTERM */
#define FINAL_MS 500	     /* for the final frame to each agent */
#define KILL_MS 2000	     /* from SIGKILL to the end of what is left */
/* Tools are other processes than agents of this machine, beside which there are orphans. */
_Static_assert(LAUNCHER_EXIT_MS < KILL_MS && FINAL_MS + 2 * KILL_MS <= CONTROLLER_STOP_MS,
	       "controller_stop keeps its time");

static struct controller *controllers; /* that were started and not stopped */

void controller_spare(struct controller *controller, pid_t pid)
{
	if (controller)
		controller->spared = pid;
}

/* Kill descendants, except those of agents that are still children of this process, of whichever
 * job. */
static void kill_orphans(int deadline_ms, char *left, size_t size)
{
	size_t count = 0, most = 0;
	pid_t *except;

	for (struct controller *at = controllers; at; at = at->next)
		most += at->process_count + 1;
	except = calloc(most + 1, sizeof *except);
	for (struct controller *at = controllers; except && at; at = at->next) {
		for (size_t i = 0; i < at->process_count; i++)
			if (at->processes[i].pid > 0)
				except[count++] = at->processes[i].pid;
		if (at->spared)
			except[count++] = at->spared;
	}
	supervise_kill_descendants(except, except ? count : 0, deadline_ms, left, size);
	free(except);
}

/* Handle "berth: error: no agent on n2: it is ...", or the tool's own line, about a node whose
 * agent has not connected yet. If the launcher does not tell a node its name in the allocation, n2
 * is its host name. */
static void read_no_agent_lines(struct controller *controller, char *line)
{
	const struct launcher *launcher = controller->launch->launcher;
	bool berths = !strncmp(line, LAUNCHER_NO_AGENT, strlen(LAUNCHER_NO_AGENT));
	const char *before = berths ? LAUNCHER_NO_AGENT : launcher->no_agent;
	char *name = before ? strstr(line, before) : NULL, *why, of_tool[300];

	if (!name || !(why = strstr(name += strlen(before), ": ")))
		return;
	*why = '\0';
	why += 2;
	if (!berths) {
		snprintf(of_tool, sizeof of_tool, "%s could not start it: %s", launcher->name, why);
		why = of_tool;
	}
	for (size_t i = 0; i < controller->count; i++)
		if (!children_known(&controller->children, i) &&
		    hostlist_same_host(controller->launch->alloc->nodes[i].name, name)) {
			controller->tool_gave_up |= !berths;
			controller_mark_lost(controller, i, why);
		}
}

/* Append a line of a launcher tool to tail: "srun: error: ...; ...". Its first lines make room.
 * harmless: see struct launcher. */
static void keep_line(char *tail, size_t size, const char *const *harmless, const char *line)
{
	size_t used = strlen(tail);

	if (!*line || launcher_has_part(harmless, line))
		return;
	for (char *rest; used && used + strlen(line) + 3 > size; used = strlen(tail)) {
		rest = strstr(tail, "; ");
		memmove(tail, rest ? rest + 2 : "", rest ? strlen(rest + 2) + 1 : 1);
	}
	snprintf(tail + used, size - used, "%s%s", used ? "; " : "", line);
	/* Replace control characters, which would move the reader's cursor. */
	text_replace_controls(tail + used, ' ', "");
}

/* Handle the lines that a launcher tool has written since the last call. */
static void read_tool_lines(struct controller *controller, struct launcher_process *process)
{
	const char *const *harmless = controller->launch->launcher->harmless;
	char output[SCAN_MAX + 1];
	ssize_t n;

	/* pread, because the tool writes through the same open file: its offset is the tool's. */
	while ((n = pread(process->output_fd, output, SCAN_MAX, process->output_read)) > 0) {
		char *line = output, *next;

		output[n] = '\0';
		for (; (next = memchr(line, '\n', (size_t)(output + n - line))); line = next + 1) {
			*next = '\0';
			if (!log_is_line(line))
				keep_line(process->output_tail, sizeof process->output_tail,
					  harmless, line);
			else if (log_is_on()) /* an agent's line belongs on our stderr */
				log_relay(line);
			read_no_agent_lines(controller, line);
		}
		if (line == output && n < SCAN_MAX)
			break; /* the tool is still writing this line */
		process->output_read += line == output ? n : line - output;
	}
	/* The file is memory, and a log can be long. */
	if (process->output_read > KEPT_MAX)
		fallocate(process->output_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			  process->output_read);
}

/* Read the tool's last lines, joined by "; ". An unfinished line counts. */
static void read_output_tail(struct controller *controller, struct launcher_process *process,
			     char *text, size_t size)
{
	char tail[sizeof process->output_tail], rest[sizeof tail];
	ssize_t n;

	read_tool_lines(controller, process);
	memcpy(tail, process->output_tail, sizeof tail);
	n = pread(process->output_fd, rest, sizeof rest - 1, process->output_read);
	if (n > 0) {
		rest[n] = '\0';
		keep_line(tail, sizeof tail, controller->launch->launcher->harmless, rest);
	}
	n = (ssize_t)strlen(tail);
	snprintf(text, size, "%s", tail + ((size_t)n < size ? 0 : (size_t)n + 1 - size));
}

/* "srun exited with code 1; its last output: srun: error: ...". when is appended to an exit
 * code. */
static void describe_tool(const struct controller *controller, int status, const char *when,
			  const char *output_tail, char *text, size_t size)
{
	const char *name = controller->launch->launcher->name;

	if (WIFSIGNALED(status))
		snprintf(text, size, "%s was killed by signal %d", name, WTERMSIG(status));
	else
		snprintf(text, size, "%s exited with code %d%s", name, WEXITSTATUS(status), when);
	if (output_tail[0])
		text_append(text, size, "; its last output: %s", output_tail);
}

static void describe_exit(struct controller *controller, struct launcher_process *process,
			  int status, char *text, size_t size)
{
	/* The process is a tool that stands for the agent, so its output is all there is. */
	if (process->output_fd >= 0) {
		char output_tail[sizeof process->output_tail];

		read_output_tail(controller, process, output_tail, sizeof output_tail);
		describe_tool(controller, status, "", output_tail, text, size);
		return;
	}
	if (WIFSIGNALED(status))
		snprintf(text, size, "its agent was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(text, size, "its agent exited with code %d", WEXITSTATUS(status));
}

static void describe_launcher(struct controller *controller, int status, char *text, size_t size)
{
	char output_tail[700];
	bool named = false;

	controller_launcher_output(controller, output_tail, sizeof output_tail);
	describe_tool(controller, status, " before all agents connected", output_tail, text, size);
	/* One of these variables may be from another job, or wrong. */
	for (const char *const *name = controller->launch->launcher->request_variables;
	     name && *name; name++) {
		const char *value = env_get(controller->launch->env, *name);

		if (value && *value) {
			text_append(text, size, "%s %s '%.60s'",
				    named ? "," : "; its environment sets", *name, value);
			named = true;
		}
	}
}

static void read_launcher_output(struct controller *controller)
{
	if (controller->placed == controller->count && !log_is_on())
		return;
	for (size_t i = 0; i < controller->process_count; i++)
		if (controller->processes[i].output_fd >= 0)
			read_tool_lines(controller, &controller->processes[i]);
}

static bool has_agents(const struct controller *controller)
{
	for (size_t i = 0; i < controller->count; i++)
		if (children_known(&controller->children, i))
			return true;
	return false;
}

/* The tool ended because the scheduler is away for a while, and there is time left. */
static bool will_start_again(struct controller *controller, const char *output)
{
	char text[1500];

	if (controller->stopping || controller->tool_gave_up ||
	    loop_now_ms(controller->loop) + AGAIN_MS > controller->start_due_ms ||
	    !launcher_has_part(controller->launch->launcher->passing, output))
		return false;
	snprintf(text, sizeof text, "%s; trying again", output);
	if (!controller->again.due_ms) { /* all nodes have the same to say */
		controller->events.note(controller->events.context, text);
		loop_timer_after(controller->loop, &controller->again, AGAIN_MS);
	}
	return true;
}

/* The launcher's tool for all nodes has ended. Its exit code proves nothing, but agents that have
 * not connected by now never will. */
static void handle_tool_end(struct controller *controller, const struct launcher_process *process,
			    int status)
{
	char output_tail[1400];

	read_launcher_output(controller);
	describe_launcher(controller, status, output_tail, sizeof output_tail);
	if (!has_agents(controller) && will_start_again(controller, output_tail))
		return;
	for (size_t n = 0; n < controller->count; n++)
		if (!children_known(&controller->children, n) &&
		    (!process->nodes_covered || process->nodes_covered[n]))
			controller_mark_lost(controller, n, output_tail);
}

static void handle_process_end(struct controller *controller, struct launcher_process *process,
			       int status)
{
	char why[900];

	process->pid = 0;
	describe_exit(controller, process, status, why, sizeof why);
	if (process->node_index < 0) {
		handle_tool_end(controller, process, status);
		return;
	}
	struct controller_node *node = &controller->nodes[process->node_index];
	bool known = children_known(&controller->children, process->node_index);

	if (!controller->stopping && launcher_is_here(controller->launch->launcher)) {
		kill_orphans(KILL_MS, NULL, 0);
		tmpdir_remove(node->dir);
	}
	/* A tool that has brought the agent is not needed any more: pbs_mom may have been restarted
	 * under it. From then on only the connection counts. */
	if (process->output_fd >= 0 && known && !node->ended_ms)
		snprintf(node->ended_why, sizeof node->ended_why, "%s", why);
	else if (!known && process->output_fd >= 0 && will_start_again(controller, why))
		process->starts_again = true;
	else
		controller_mark_lost(controller, (size_t)process->node_index, why);
}

void controller_reap(void)
{
	int status;
	pid_t pid;

	/* Any child: also orphans that this process has adopted, as a subreaper. */
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (struct controller *at = controllers; at; at = at->next)
			for (size_t i = 0; i < at->process_count; i++)
				if (at->processes[i].pid == pid)
					handle_process_end(at, &at->processes[i], status);
}

bool controller_launcher_ended(struct controller *controller)
{
	bool ended = true;

	controller_reap();
	for (size_t i = 0; i < controller->process_count; i++)
		ended &= controller->processes[i].pid <= 0;
	return ended;
}

void controller_launcher_output(struct controller *controller, char *text, size_t size)
{
	text[0] = 0;
	for (size_t i = 0; i < controller->process_count; i++) {
		size_t used = strlen(text);

		if (controller->processes[i].output_fd < 0 || used + 3 > size)
			continue;
		if (used)
			strcpy(text + used, "; ");
		read_output_tail(controller, &controller->processes[i], text + strlen(text),
				 size - strlen(text));
		if (used && !text[used + 2])
			text[used] = '\0';
	}
}

/* Runs in the child of a launcher that does not exec. */
static int run_agent(void *context, size_t node_index, int fd)
{
	struct controller *controller = context;
	struct error err = {0};
	struct agent_params params = {
		.node_index = node_index,
		.name = controller->launch->alloc->nodes[node_index].name,
		.job = controller->launch->alloc->job_id,
		.secret = controller->secret,
		.fd = fd,
		.node_timeout_ms = controller->launch->node_timeout_ms,
		.env = controller->launch->env,
	};

	if (!agent_run(&params, &err))
		return 0;
	log_line(LOG_ERROR, "agent", "%s", err.text);
	return err.code;
}

/* Start all tools, or the one that serves a node once more. */
static int start_launcher(struct controller *controller, struct launcher_process *one,
			  struct error *err)
{
	const struct launcher *launcher = controller->launch->launcher;
	char secret[65], address[4096] = "";
	struct launcher_job job = {
		.launch = controller->launch,
		.secret = launcher->secret_from_cookie ? NULL : secret,
		.secret_source = launcher->secret_from_cookie ? controller->secret_source : NULL,
		.controller_addresses = address,
		.agent = run_agent,
		.context = controller,
	};
	int port = children_port(&controller->children), rc = 0;

	secret_format(&controller->secret, secret);
	if (!launcher_is_here(launcher))
		rc = socket_own_addresses(port, sys_net_speed, address, sizeof address, err);
	/* The user gave the other machines this machine's address; only its own agent needs this
	 * one. */
	if (launcher_is_here(launcher) || (rc && launcher->shape == LAUNCH_BY_HAND)) {
		snprintf(address, sizeof address, "127.0.0.1:%d", port);
		rc = 0;
	}
	if (!rc && !one && log_details[LOG_LAUNCH]) {
		char *line = launcher->command_line(&job);

		log_info(LOG_LAUNCH, "agents connect to %s; %s",
			 launcher->shape == LAUNCH_HERE ? "a socket pair" : address,
			 line ? line : "");
		free(line);
	}
	if (!rc)
		rc = one ? launcher_start_tool(&job, (size_t)one->node_index, one, err)
			 : launcher->start(&job, &controller->processes, &controller->process_count,
					   err);
	explicit_bzero(secret, sizeof secret);
	for (size_t i = 0; !rc && !one && i < controller->process_count; i++)
		if (controller->processes[i].fd >= 0)
			rc = children_adopt(&controller->children, controller->processes[i].fd,
					    &controller->secret, controller->launch->alloc->job_id,
					    err);
	return rc;
}

static void forget_processes(struct controller *controller)
{
	for (size_t i = 0; i < controller->process_count; i++) {
		if (controller->processes[i].output_fd >= 0)
			close(controller->processes[i].output_fd);
		free(controller->processes[i].nodes_covered);
	}
	free(controller->processes);
	controller->processes = NULL;
	controller->process_count = 0;
}

/* Derive the secret from PBS's cookie. Without a cookie, write it to a file for the agents. */
static int make_secret_source(struct controller *controller, struct error *err)
{
	const char *cookie = env_get(controller->launch->env, LAUNCHER_COOKIE);
	char nonce[17];
	int rc;

	if (!cookie) {
		rc = secret_file_create(controller->launch->env, &controller->secret,
					controller->secret_file, sizeof controller->secret_file - 8,
					err);
		if (rc)
			controller->secret_file[0] = '\0';
		else
			snprintf(controller->secret_source, sizeof controller->secret_source,
				 "file:%s", controller->secret_file);
		return rc;
	}
	/* A nonce may be public but must be new: the fingerprint of the random secret is both. */
	secret_fingerprint(&controller->secret, nonce);
	snprintf(controller->secret_source, sizeof controller->secret_source, "cookie:%s", nonce);
	return secret_derive(cookie, controller->launch->alloc->job_id, nonce, &controller->secret,
			     err);
}

/* Create a secret for this run only, even if it is derived from PBS's cookie. */
static int make_secret(struct controller *controller, struct error *err)
{
	const struct launch_options *launch = controller->launch;
	char path[4096];
	bool made = false;

	secret_protect_process();
	/* Roles try each other's addresses, and know each other by the secret. */
	for (struct controller *at = controllers; launch->role && at; at = at->next)
		if (at != controller && at->launch->role) {
			controller->secret = at->secret;
			memcpy(controller->secret_source, at->secret_source,
			       sizeof controller->secret_source);
			return 0;
		}

	int rc = launch->launcher->shape == LAUNCH_BY_HAND
			 ? secret_file_read(launch->env, true, &controller->secret, &made, path,
					    sizeof path, err)
			 : secret_generate(&controller->secret, err);

	if (!rc && made) {
		char text[4300];

		snprintf(text, sizeof text,
			 "created the secret %s; copy it to the other machines unless they share "
			 "this home directory",
			 path);
		controller->events.note(controller->events.context, text);
	}
	return !rc && launch->launcher->secret_from_cookie ? make_secret_source(controller, err)
							   : rc;
}

static void on_second(struct loop_timer *timer)
{
	struct controller *controller = LOOP_OWNER(timer, struct controller, second);
	int64_t now_ms = loop_now_ms(controller->loop);

	loop_timer_after(controller->loop, timer, CONNECTION_HEARTBEAT_MS);
	read_launcher_output(controller);
	for (size_t i = 0; i < controller->count; i++) {
		int64_t ended_ms = controller->nodes[i].ended_ms;

		if (ended_ms && now_ms - ended_ms > CONTROLLER_REAP_MS) {
			controller->nodes[i].ended_ms = 0;
			controller_mark_lost(controller, i, controller->nodes[i].ended_why);
		}
	}
}

static void on_again(struct loop_timer *timer)
{
	struct controller *controller = LOOP_OWNER(timer, struct controller, again);
	bool one = false;
	struct error err;

	for (size_t i = 0; i < controller->process_count; i++) {
		struct launcher_process *process = &controller->processes[i];

		if (!process->starts_again)
			continue;
		one = true;
		close(process->output_fd);
		*process = (struct launcher_process){
			.node_index = process->node_index, .fd = -1, .output_fd = -1};
		if (start_launcher(controller, process, &err))
			controller_mark_lost(controller, (size_t)process->node_index, err.text);
	}
	if (one)
		return;
	for (size_t i = 0; i < controller->process_count; i++)
		if (controller->processes[i].pid > 0) { /* of another part of the nodes */
			loop_timer_after(controller->loop, timer, AGAIN_MS);
			return;
		}
	if (has_agents(controller))
		return;
	forget_processes(controller);
	if (start_launcher(controller, NULL, &err))
		for (size_t i = 0; i < controller->count; i++)
			controller_mark_lost(controller, i, err.text);
}

int controller_start(struct loop *loop, const struct launch_options *launch, int port,
		     const struct controller_events *events, struct controller **out,
		     struct error *err)
{
	struct controller *controller = calloc(1, sizeof *controller);
	struct rlimit limit;
	int rc;

	if (!controller)
		return error_memory(err, "the controller");
	*controller = (struct controller){
		.loop = loop,
		.launch = launch,
		.port = port,
		.events = *events,
		.count = launch->alloc->node_count,
		.start_due_ms = loop_now_ms(loop) + launch->start_timeout_ms,
		.again.due = on_again,
		.second.due = on_second,
		.read_output = read_launcher_output,
	};
	controller->next = controllers;
	controllers = controller;
	loop_timer_after(loop, &controller->second, CONNECTION_HEARTBEAT_MS);
	controller->nodes = calloc(controller->count, sizeof *controller->nodes);
	rc = controller->nodes ? controller_init_children(controller, err)
			       : error_memory(err, "the nodes");
	if (!rc)
		rc = make_secret(controller, err);
	if (!rc)
		/* Before any agent starts, so that what a killed one leaves behind becomes a child
		 * of this process. */
		rc = supervise_become_subreaper(err);
	/* Listen before the launcher starts: agents get the port from it. */
	if (!rc && launch->launcher->shape != LAUNCH_HERE) {
		int listen_port = 0;

		if (launch->launcher->shape == LAUNCH_BY_HAND && launch->alloc->rendezvous)
			rc = alloc_parse_rendezvous("the rendezvous address",
						    launch->alloc->rendezvous, NULL, 0,
						    &listen_port, err);
		if (!rc)
			rc = children_listen(&controller->children, listen_port,
					     &controller->secret, launch->alloc->job_id, true, err);
	}
	if (!rc)
		rc = start_launcher(controller, NULL, err);
	/* Raise the limit of open files: before the tree is built, every agent is connected to
	 * this process. The agents must not inherit the higher limit. */
	if (launch->launcher->shape != LAUNCH_HERE && !getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (rc) {
		controller_stop(controller, 0, NULL, 0);
		return rc;
	}
	*out = controller;
	return 0;
}

static void wait_processes(struct controller *controller, int timeout_ms)
{
	int64_t until = clock_now_ms() + timeout_ms;

	for (;;) {
		size_t alive = 0;

		controller_reap();
		for (size_t i = 0; i < controller->process_count; i++)
			alive += controller->processes[i].pid > 0;
		if (!alive || clock_now_ms() >= until)
			return;
		usleep(alive > 4 ? 5000 : 500);
	}
}

void controller_stop(struct controller *controller, int timeout_ms, char *left, size_t size)
{
	if (!controller)
		return;
	controller->stopping = true;
	loop_timer_stop(&controller->again);
	loop_timer_stop(&controller->second);
	if (left && size)
		left[0] = 0;
	children_close(&controller->children, timeout_ms < FINAL_MS ? timeout_ms : FINAL_MS);
	controller_remove_secret_file(controller);
	for (size_t i = 0; i < controller->count && controller->nodes; i++)
		if (controller->nodes[i].lost && timeout_ms > LOST_END_MS)
			timeout_ms = LOST_END_MS; /* its launcher may wait for it forever */
	wait_processes(controller, timeout_ms);
	/* A launcher tool may be waiting for a lost node. On SIGTERM it also ends the step in
	 * the scheduler. */
	bool signalled = false;

	for (size_t i = 0; i < controller->process_count; i++)
		if (controller->processes[i].pid > 0 && controller->processes[i].node_index < 0)
			signalled |= !launcher_kill(&controller->processes[i], SIGTERM);
	if (signalled)
		wait_processes(controller, LAUNCHER_EXIT_MS);
	for (size_t i = 0; i < controller->process_count; i++)
		if (controller->processes[i].pid > 0)
			launcher_kill(&controller->processes[i], SIGKILL);
	wait_processes(controller, KILL_MS);
	read_launcher_output(controller);
	if (launcher_is_here(controller->launch->launcher)) {
		kill_orphans(KILL_MS, left, size);
		for (size_t i = 0; i < controller->count && controller->nodes; i++)
			if (controller->nodes[i].dir[0])
				tmpdir_remove(controller->nodes[i].dir);
	}
	secret_wipe(&controller->secret);
	forget_processes(controller);
	for (struct controller **at = &controllers; *at; at = &(*at)->next)
		if (*at == controller) {
			*at = controller->next;
			break;
		}
	free(controller->nodes);
	free(controller);
}

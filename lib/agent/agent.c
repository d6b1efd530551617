/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/agent.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/module.h"
#include "base/number.h"
#include "hostlist/hostlist.h"
#include "launch/launcher.h"
#include "overlay/secret_file.h"
#include "process/guardian.h"
#include "process/tmpdir.h"

#define HEARTBEAT_MS 1000
#define DUPLICATE_SIGNAL_MS 500 /* the same signal from its sender and from the guardian */
#define STEP_SIGNAL_MS 2000	/* the same signal from the launcher and from the head */
#define STEP_SIGNAL_WAIT_MS 100 /* for the launcher's, where the head's is first */
#define WORKER_S 2		/* for hwloc and NVML to come to an end, when the agent has to go */

/* The one of hosts that is this machine, by name or address. A full name before a short one: n1.a
 * and n1.b may both be nodes. */
static int find_this_host(const struct hosts *hosts, struct error *err)
{
	char self[256] = "";
	int found = -1;

	gethostname(self, sizeof self - 1);
	for (size_t i = 0; i < hosts->count; i++)
		if (!strcmp(hosts->names[i], self))
			return (int)i;
	for (size_t i = 0; i < hosts->count; i++) {
		if (!launcher_is_this_host(hosts->names[i]))
			continue;
		if (found >= 0)
			return error_set(
				err, ERR_DATA,
				"this machine (%s) may be %s as well as %s of the job's nodes",
				self, hosts->names[found], hosts->names[i]);
		found = (int)i;
	}
	return found >= 0 ? found
			  : error_set(err, ERR_DATA, "this machine (%s) is none of the job's nodes",
				      self);
}

/* LAUNCHER_ENV_NODE and NAME, or this node's place in the list that all agents were given. */
static int read_node_identity(const struct env *env, struct agent_params *params, struct error *err)
{
	const char *list = env_get(env, LAUNCHER_ENV_NODES),
		   *self = env_get(env, LAUNCHER_ENV_SELF);
	const char *index = env_get(env, LAUNCHER_ENV_NODE);
	struct hosts hosts = {0};
	int node = -1, rc;

	if (!list || !self) {
		params->name = env_get(env, LAUNCHER_ENV_NAME);
		rc = index ? number_int(LAUNCHER_ENV_NODE, index, 0, 1 << 20, &node, err)
			   : error_set(err, ERR_USAGE,
				       "%s is not set: agents are started by berth run; see man "
				       "berth-agent",
				       LAUNCHER_ENV_NODE);
		params->node_index = rc ? 0 : (size_t)node;
		return rc;
	}
	rc = hostlist_expand(list, &hosts, err);
	if (!rc && !strcmp(self, LAUNCHER_SELF_FROM_HOST)) {
		node = find_this_host(&hosts, err);
		rc = node < 0 ? node : 0;
		/* Kept for as long as the process: there is one of it. */
		params->name = rc ? NULL : strdup(hosts.names[node]);
		if (!rc && !params->name)
			rc = error_memory(err, "the node's name");
		hosts_free(&hosts);
		params->node_index = rc ? 0 : (size_t)node;
		return rc;
	}
	params->name = env_get(env, self);
	for (size_t i = 0; !rc && params->name && node < 0 && i < hosts.count; i++)
		if (!strcmp(hosts.names[i], params->name))
			node = (int)i;
	if (!rc && node < 0)
		rc = error_set(err, ERR_DATA,
			       "%s is '%.80s', which is none of the job's nodes: "
			       "'%.200s'",
			       self, params->name ? params->name : "", list);
	hosts_free(&hosts);
	params->node_index = rc ? 0 : (size_t)node;
	return rc;
}

/* BERTH_AGENT_SECRET, or by what BERTH_AGENT_SECRET_FROM says. */
static int read_secret(const struct env *env, struct agent_params *params, struct error *err)
{
	static const char cookie[] = "cookie:", file[] = "file:";
	const char *secret = env_get(env, LAUNCHER_ENV_SECRET);
	const char *secret_source = env_get(env, LAUNCHER_ENV_SECRET_SOURCE);

	if (secret)
		return secret_parse(secret, &params->secret, err);
	if (!secret_source)
		return error_set(err, ERR_USAGE,
				 "%s is not set: agents are started by berth run; see man "
				 "berth-agent",
				 LAUNCHER_ENV_SECRET);
	if (!strncmp(secret_source, file, sizeof file - 1))
		return secret_file_load(secret_source + sizeof file - 1, &params->secret, err);
	if (strncmp(secret_source, cookie, sizeof cookie - 1))
		return error_set(err, ERR_DATA, "%s is '%.40s', expected cookie:NONCE or file:PATH",
				 LAUNCHER_ENV_SECRET_SOURCE, secret_source);
	return secret_derive(env_get(env, LAUNCHER_COOKIE), params->job,
			     secret_source + sizeof cookie - 1, &params->secret, err);
}

int agent_params_read(const struct env *env, struct agent_params *out, struct error *err)
{
	static const char *const needed[] = {LAUNCHER_ENV_CONTROLLER, LAUNCHER_ENV_JOB};
	struct agent_params params = {.fd = -1, .node_timeout_ms = 8000, .env = env};
	int rc;

	for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
		if (!env_get(env, needed[i]))
			return error_set(err, ERR_USAGE,
					 "%s is not set: agents are started by berth run; see man "
					 "berth-agent",
					 needed[i]);
	params.controller_addresses = env_get(env, LAUNCHER_ENV_CONTROLLER);
	params.job = env_get(env, LAUNCHER_ENV_JOB);
	rc = read_node_identity(env, &params, err);
	if (!rc && env_get(env, LAUNCHER_ENV_NODE_TIMEOUT))
		rc = number_int(LAUNCHER_ENV_NODE_TIMEOUT, env_get(env, LAUNCHER_ENV_NODE_TIMEOUT),
				100, 86400000, &params.node_timeout_ms, err);
	if (!rc)
		rc = read_secret(env, &params, err);
	if (rc) {
		return error_prefix(err, "berth agent");
	}
	*out = params;
	return 0;
}

/* ---- talking ---- */

void agent_send(struct agent *agent, enum message_type type, uint64_t sequence, json_t *text,
		const void *data, size_t size)
{
	struct error err = {0};

	if (!agent->uplink || agent->disconnected) {
		json_decref(text);
		return;
	}
	if (message_send(agent->uplink, type, (uint32_t)agent->params.node_index, agent->attempt,
			 sequence, text, data, size, &err))
		log_line(LOG_WARNING, "agent", "%s", err.text);
}

void agent_fail(struct agent *agent, const struct error *err)
{
	agent_send(agent, MESSAGE_FAILED, 0,
		   json_pack("{s:i, s:o}", "code", err->code ? err->code : ERR_INTERNAL, "text",
			     json_text(err->text)),
		   NULL, 0);
}

void agent_note(struct agent *agent, const char *format, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	agent_send(agent, MESSAGE_NOTE, 0, json_pack("{s:o}", "text", json_text(text)), NULL, 0);
}

/* ---- the worker: what may take long ---- */

static void *discover(void *context)
{
	struct agent_worker *worker = context;
	uint64_t one = 1;

	inventory_discover_from_env(&worker->source, worker->env, &worker->inventory,
				    &worker->discovery_error);
	if (write(worker->done.fd, &one, sizeof one) < 0)
		return NULL; /* an eventfd takes a 1 always */
	return NULL;
}

static void on_discovered(struct loop_source *source, uint32_t events)
{
	struct agent_worker *worker = (struct agent_worker *)source;
	struct agent *agent = worker->agent;
	int fd = source->fd;

	(void)events;
	loop_remove(agent->loop, source);
	close(fd);
	if (worker->running)
		pthread_join(worker->discovery_thread, NULL);
	worker->running = false;
	agent->inventory_ready = true;
	if (!worker->discovery_error.code && agent->params.name) {
		char *name = strdup(agent->params.name);

		/* The name by which the allocation knows this node is the one people know. */
		if (name) {
			free(worker->inventory.node);
			worker->inventory.node = name;
		}
	}
	agent_uplink_send_inventory(agent);
}

static int start_worker(struct agent *agent, struct error *err)
{
	struct agent_worker *worker = &agent->worker;
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	worker->agent = agent;
	worker->env = agent->params.env;
	worker->done.ready = on_discovered;
	if (fd < 0)
		return error_set(err, ERR_UNAVAILABLE, "eventfd: %s", strerror(errno));
	if (loop_add(agent->loop, &worker->done, fd, EPOLLIN, err)) {
		close(fd);
		return -err->code;
	}
	/* An XML is tried in a child first (inventory_discover), and a child of a process with
	 * several threads may find a lock that nobody will open. No driver is asked then: it is
	 * quick. */
	if (inventory_topology_file(worker->env)) {
		discover(worker);
		return 0;
	}
	if (pthread_create(&worker->discovery_thread, NULL, discover, worker))
		return error_set(err, ERR_UNAVAILABLE, "no thread can be started");
	worker->running = true;
	return 0;
}

/* ---- life ---- */

/* Who signals all processes of a job step reaches the guardian too, which passes it on: that is
 * one signal, not two. */
static bool is_duplicate_signal(struct agent *agent, const struct signalfd_siginfo *info)
{
	bool passed_on = (pid_t)info->ssi_pid == agent->guardian;
	int64_t now = clock_now_ms(), before = agent->received[info->ssi_signo].ms;
	bool duplicate = before && now - before < DUPLICATE_SIGNAL_MS &&
			 agent->received[info->ssi_signo].passed_on != passed_on;

	agent->received[info->ssi_signo].ms = duplicate ? 0 : now;
	agent->received[info->ssi_signo].passed_on = passed_on;
	return duplicate;
}

static void on_signals(struct loop_source *source, uint32_t events)
{
	struct agent *agent = (struct agent *)((char *)source - offsetof(struct agent, signals));
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof info) == sizeof info) {
		if ((pid_t)info.ssi_pid == agent->launcher_pid)
			agent->step_signal_ms[info.ssi_signo] = clock_now_ms();
		if (!is_duplicate_signal(agent, &info))
			agent_send(agent, MESSAGE_SIGNALLED, 0,
				   json_pack("{s:i}", "signal", (int)info.ssi_signo), NULL, 0);
	}
}

void agent_signal(struct agent *agent, int number)
{
	if (!env_get(agent->params.env, "SLURM_STEP_ID"))
		agent_ranks_signal(agent, number);
	else if (number < NSIG && !agent->due_ms[number])
		agent->due_ms[number] = clock_now_ms() + STEP_SIGNAL_WAIT_MS;
}

/* scancel signals every process of the step, on its own way to each node. This process, in a
 * session of its own, hears the stepd where the ranks do. */
static void signal_ranks(struct agent *agent, int64_t now)
{
	for (int number = 1; number < NSIG; number++) {
		if (!agent->due_ms[number] || now < agent->due_ms[number])
			continue;
		agent->due_ms[number] = 0;
		if (!agent->step_signal_ms[number] ||
		    now - agent->step_signal_ms[number] > STEP_SIGNAL_MS)
			agent_ranks_signal(agent, number);
	}
}

static int start_signals(struct agent *agent, struct error *err)
{
	static const int forwarded[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT};

	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	agent->signals.ready = on_signals;
	return loop_add_signals(agent->loop, &agent->signals, forwarded,
				sizeof forwarded / sizeof *forwarded, err);
}

/* Who kills the guardian means this node: it is what a launcher or a person started here, and
 * nobody would look after what is below it any more. */
static void check_guardian(struct agent *agent)
{
	struct error err;

	if (agent->guardian_lost || getppid() == agent->guardian)
		return;
	agent->guardian_lost = true;
	error_set(&err, ERR_NETWORK, "what was started on this node (process %d) was killed",
		  (int)agent->guardian);
	agent_fail(agent, &err);
}

static void tick(struct agent *agent)
{
	int64_t now = clock_now_ms();
	/* Were we stopped ourselves (SIGSTOP, a frozen cgroup)? Then nobody else was silent. */
	bool slept = now - agent->woke_ms > 3 * HEARTBEAT_MS;

	agent->woke_ms = now;
	signal_ranks(agent, now);
	agent_probe_tick(agent, now);
	agent_heartbeats_poll(agent, now, false);
	if (now - agent->heartbeat_sent_ms < HEARTBEAT_MS)
		return;
	agent->heartbeat_sent_ms = now;
	check_guardian(agent);
	agent_send(agent, MESSAGE_HEARTBEAT, 0, NULL, NULL, 0);
	agent_downlinks_tick(agent, now, slept);
	agent_uplink_tick(agent, now, slept);
}

static int64_t next_timeout(const struct agent *agent)
{
	int64_t now = clock_now_ms(), due = agent->heartbeat_sent_ms + HEARTBEAT_MS,
		probe_due_ms = agent_probe_due_ms(agent);

	if (probe_due_ms >= 0 && probe_due_ms < due)
		due = probe_due_ms;
	for (int number = 1; number < NSIG; number++)
		if (agent->due_ms[number] && agent->due_ms[number] < due)
			due = agent->due_ms[number];
	return due > now ? due - now : 0;
}

static void destroy(struct agent *agent)
{
	agent_pmix_stop(agent);
	agent_ranks_close(agent);
	agent_probe_close(agent);
	agent_downlinks_close(agent, agent->failure.code == 0);
	connection_close(agent->next_uplink);
	if (agent->uplink)
		connection_finish(agent->uplink, 1000);
	connection_close(agent->uplink);
	if (agent->signals.fd >= 0)
		close(agent->signals.fd);
	if (agent->port_fd >= 0)
		close(agent->port_fd);
	if (agent->dir[0])
		tmpdir_remove(agent->dir);
	/* A driver may hold the worker for ever; the process ends without it then. */
	struct timespec until = clock_after_ms(WORKER_S * 1000);

	if (agent->worker.running &&
	    !pthread_clockjoin_np(agent->worker.discovery_thread, NULL, CLOCK_MONOTONIC, &until))
		agent->worker.running = false;
	if (!agent->worker.running) {
		inventory_free(&agent->worker.inventory);
		free(agent->detached);
		loop_free(agent->loop);
		free(agent);
	}
}

int agent_run(const struct agent_params *params, struct error *err)
{
	struct agent *agent = calloc(1, sizeof *agent);
	pid_t launcher_pid = getppid();
	int rc;

	if (!agent)
		return error_memory(err, "the agent");
	rc = tmpdir_create(env_get(params->env, "TMPDIR"), agent->dir, sizeof agent->dir, err);
	if (!rc && (rc = guardian_fork(agent->dir, &agent->guardian, err)))
		tmpdir_remove(agent->dir);
	if (rc) {
		free(agent);
		return rc;
	}
	agent->params = *params;
	agent->launcher_pid = launcher_pid;
	agent->port_fd = agent->port = -1;
	agent->signals.fd = agent->supervise_source.fd = agent->server_source.fd =
		agent->worker.done.fd = -1;
	agent->reading = true;
	agent->woke_ms = clock_now_ms();
	if (params->name)
		log_set_identity(params->name, -1);
	/* Before there are threads, and early: it loads PMIx while hwloc looks around. */
	server_process_fork(env_get(params->env, "BERTH_MODULE_PATH"), &agent->pmix,
			    &agent->pmix_error);
	rc = loop_new(&agent->loop, err);
	if (!rc)
		rc = start_signals(agent, err);
	if (!rc)
		rc = start_worker(agent, err);
	if (!rc && params->name)
		server_process_prepare(agent->pmix, agent->dir, params->name,
				       (int)params->node_index);
	if (!rc)
		rc = agent_uplink_open(agent, err);
	agent->woke_ms = clock_now_ms();
	while (!rc && !agent->finished) {
		rc = loop_once(agent->loop, (int)next_timeout(agent), err);
		agent_pmix_complete_local(agent);
		agent_ranks_resume_start(agent);
		agent_ranks_flush(agent);
		tick(agent);
	}
	/* Once it was welcomed, why the head went away is the head's to say. */
	if (!rc && agent->failure.code && agent->welcomed) {
		log_line(LOG_DEBUG, "agent", "%s", agent->failure.text);
	} else if (!rc && agent->failure.code) {
		*err = agent->failure;
		rc = -err->code;
	}
	destroy(agent);
	return rc;
}

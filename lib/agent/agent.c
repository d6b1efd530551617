/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/agent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "agent/folder.h"
#include "agent/socket.h"
#include "base/json.h"
#include "base/log.h"
#include "base/module.h"
#include "base/number.h"
#include "launch/engine.h"

#define CONNECT_MS 20000 /* to reach the head at any of its addresses */
#define CONNECT_ONE_MS 3000
#define REFUSED_MS 3000 /* of nothing but refusals: the head listened before we were started */
#define PARENT_MS 5000	/* to reach the parent, before the head stays it */
#define BEAT_MS 1000
#define WORKER_S 2 /* for hwloc and NVML to come to an end, when the agent has to go */

int agent_params_read(const struct env *env, struct agent_params *out, struct error *err)
{
	static const char *const needed[] = {ENGINE_ENV_HEAD, ENGINE_ENV_JOB, ENGINE_ENV_NODE,
					     ENGINE_ENV_SECRET};
	struct agent_params params = {.fd = -1, .node_timeout_ms = 8000, .env = env};
	int node, rc;

	for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
		if (!env_get(env, needed[i]))
			return error_set(err, ERR_USAGE,
					 "%s is not set: agents are started by berth run; see man "
					 "berth-agent",
					 needed[i]);
	params.head = env_get(env, ENGINE_ENV_HEAD);
	params.job = env_get(env, ENGINE_ENV_JOB);
	params.name = env_get(env, ENGINE_ENV_NAME);
	rc = number_int(ENGINE_ENV_NODE, env_get(env, ENGINE_ENV_NODE), 0, 1 << 20, &node, err);
	if (!rc && env_get(env, ENGINE_ENV_TIMEOUT))
		rc = number_int(ENGINE_ENV_TIMEOUT, env_get(env, ENGINE_ENV_TIMEOUT), 100, 86400000,
				&params.node_timeout_ms, err);
	if (!rc)
		rc = wire_secret_parse(env_get(env, ENGINE_ENV_SECRET), &params.secret, err);
	if (rc) {
		return error_prefix(err, "berth agent");
	}
	params.node_index = (size_t)node;
	*out = params;
	return 0;
}

/* ---- talking ---- */

void agent_say(struct agent *agent, enum agent_message type, uint64_t sequence, json_t *text,
	       const void *data, size_t size)
{
	struct error err = {0};

	if (!agent->up || agent->gone) {
		json_decref(text);
		return;
	}
	if (proto_send(agent->up, type, (uint32_t)agent->params.node_index, agent->attempt,
		       sequence, text, data, size, &err))
		log_line(LOG_WARNING, "agent", "%s", err.text);
}

void agent_fail(struct agent *agent, const struct error *err)
{
	agent_say(agent, MESSAGE_FAILED, 0,
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
	agent_say(agent, MESSAGE_NOTE, 0, json_pack("{s:o}", "text", json_text(text)), NULL, 0);
}

static int say_hello(struct agent *agent, struct link *link, struct error *err)
{
	return proto_send(link, MESSAGE_HELLO, (uint32_t)agent->params.node_index, 0, 0,
			  json_pack("{s:I, s:o, s:s, s:i}", "node",
				    (json_int_t)agent->params.node_index, "name",
				    json_text(agent->params.name), "folder", agent->folder, "pid",
				    (int)getpid()),
			  NULL, 0, err);
}

/* The card goes up once the machine is known and this agent knows to whom. */
static void send_card(struct agent *agent)
{
	struct error err = {0};
	json_t *card;

	if (agent->carded || !agent->machine_ready || !agent->settled)
		return;
	agent->carded = true;
	if (agent->worker.machine_error.code) {
		agent_fail(agent, &agent->worker.machine_error);
		return;
	}
	card = machine_to_json(&agent->worker.machine);
	if (!card) {
		error_memory(&err, "the card of this node");
		agent_fail(agent, &err);
		return;
	}
	agent_say(agent, MESSAGE_CARD, 0,
		  json_pack("{s:i, s:o}", "port", agent->port, "card", card), NULL, 0);
}

/* ---- the worker: what may take long ---- */

static void *work(void *context)
{
	struct agent_worker *worker = context;
	uint64_t one = 1;
	int rc = machine_load(&worker->source, &worker->machine, &worker->machine_error);

	/* The node's list says nothing about another machine's capture. */
	if (!rc && worker->visible && worker->machine.this_system)
		machine_allow_gpus(&worker->machine, worker->visible_name, worker->visible,
				   &worker->machine_error);
	if (write(worker->done.fd, &one, sizeof one) < 0)
		return NULL; /* an eventfd takes a 1 always */
	return NULL;
}

static void worked(struct loop_source *source, uint32_t events)
{
	struct agent_worker *worker = (struct agent_worker *)source;
	struct agent *agent = worker->agent;
	int fd = source->fd;

	(void)events;
	loop_remove(agent->loop, source);
	close(fd);
	pthread_join(worker->machine_thread, NULL);
	worker->running = false;
	agent->machine_ready = true;
	if (!worker->machine_error.code && agent->params.name) {
		char *name = strdup(agent->params.name);

		/* The name by which the allocation knows this node is the one people know. */
		if (name) {
			free(worker->machine.node);
			worker->machine.node = name;
		}
	}
	send_card(agent);
}

static int start_worker(struct agent *agent, struct error *err)
{
	struct agent_worker *worker = &agent->worker;
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	worker->agent = agent;
	worker->env = agent->params.env;
	worker->done.ready = worked;
	worker->source.topology_file = env_get(agent->params.env, "BERTH_TOPOLOGY");
	if (worker->source.topology_file && !*worker->source.topology_file)
		worker->source.topology_file = NULL;
	worker->visible_name = "CUDA_VISIBLE_DEVICES";
	worker->visible = env_get(agent->params.env, worker->visible_name);
	if (fd < 0)
		return error_set(err, ERR_UNAVAILABLE, "eventfd: %s", strerror(errno));
	if (loop_add(agent->loop, &worker->done, fd, EPOLLIN, err)) {
		close(fd);
		return -err->code;
	}
	if (pthread_create(&worker->machine_thread, NULL, work, worker))
		return error_set(err, ERR_UNAVAILABLE, "no thread can be started");
	worker->running = true;
	return 0;
}

/* ---- the connection up ---- */

static void take_welcome(struct agent *agent, const json_t *text)
{
	struct error err = {0};
	int64_t nodes, fanout, port;
	int listen, move;
	int rc = json_get_int("WELCOME", text, "nodes", 1, 1 << 20, &nodes, &err);

	if (!rc)
		rc = json_get_int("WELCOME", text, "fanout", 1, 4096, &fanout, &err);
	if (!rc)
		rc = json_get_int("WELCOME", text, "port", -1, 65535, &port, &err);
	if (!rc)
		rc = json_get_bool("WELCOME", text, "listen", &listen, &err);
	if (!rc)
		rc = json_get_bool("WELCOME", text, "move", &move, &err);
	if (!rc && agent->welcomed)
		rc = error_set(&err, ERR_DATA, "a second WELCOME");
	if (rc)
		goto fail;
	agent->welcomed = true;
	agent->node_count = (size_t)nodes;
	agent->fanout = (size_t)fanout;
	agent->detached = calloc(agent->node_count, sizeof *agent->detached);
	if (!agent->detached) {
		rc = error_memory(&err, "the nodes of the job");
		goto fail;
	}
	if (port >= 0 && (rc = socket_hold((int)port, &agent->port_fd, &agent->port, &err)))
		goto fail;
	if (listen && (rc = agent_tree_listen(agent, &err)))
		goto fail;
	agent->settled = !move;
	send_card(agent);
	return;
fail:
	agent_fail(agent, &err);
}

static void stay(struct agent *agent, const char *why)
{
	agent->settled = true;
	agent_say(agent, MESSAGE_STAYS, 0, json_pack("{s:o}", "why", json_text(why)), NULL, 0);
	send_card(agent);
}

static void take_move(struct agent *agent, const json_t *text)
{
	struct error err = {0};
	struct sockaddr_storage to;
	socklen_t size;
	const char *address;
	int fd, under_way;

	if (json_get_string("MOVE", text, "address", &address, &err) ||
	    socket_parse(address, &to, &size, &err) ||
	    socket_connect(&to, size, &fd, &under_way, &err) ||
	    link_open(agent->loop, fd, under_way, WIRE_CONNECTS, &agent->params.secret,
		      agent->params.job, &agent->up_owner, &agent->up_next, &err) ||
	    say_hello(agent, agent->up_next, &err))
		stay(agent, err.text);
}

static void up_opened(void *context, struct link *link)
{
	struct agent *agent = context;

	if (link != agent->up_next)
		return;
	agent_say(agent, MESSAGE_MOVED, 0, NULL, NULL, 0);
	link_finish(agent->up, 500);
	link_close(agent->up);
	agent->up = link;
	agent->up_next = NULL;
	agent->settled = true;
	send_card(agent);
}

/* What is for this node, or for everybody. */
static void obey(struct agent *agent, const struct wire_message *message)
{
	json_t *text = NULL;
	struct error err = {0};
	int64_t number;
	int rc = 0;

	if (message->text_size && (rc = proto_text(message, &text, &err)))
		goto out;
	switch (message->type) {
	case MESSAGE_WELCOME:
		take_welcome(agent, text);
		break;
	case MESSAGE_MOVE:
		take_move(agent, text);
		break;
	case MESSAGE_TREE:
		rc = agent_tree_settled(agent, text, &err);
		break;
	case MESSAGE_REACH:
		rc = agent_reach_start(agent, text, &err);
		break;
	case MESSAGE_JOB:
		rc = agent_ranks_job(agent, message, text, &err);
		break;
	case MESSAGE_START:
		rc = agent_ranks_start(agent, message, text, &err);
		break;
	case MESSAGE_SIGNAL:
		rc = json_get_int("SIGNAL", text, "signal", 1, SIGRTMAX, &number, &err);
		if (!rc && agent->supervise)
			supervise_signal(agent->supervise, (int)number);
		break;
	case MESSAGE_STOP:
		rc = json_get_int("STOP", text, "grace_ms", 0, 3600000, &number, &err);
		if (!rc)
			agent_ranks_stop(agent, (int)number);
		break;
	case MESSAGE_GATHERED:
		agent_pmix_gathered(agent, message);
		break;
	case MESSAGE_FETCH:
		agent_pmix_fetch(agent, message, text);
		break;
	case MESSAGE_FETCHED:
		agent_pmix_fetched(agent, message, text);
		break;
	default:
		rc = error_set(&err, ERR_DATA, "a message of type %u is unknown here",
			       message->type);
	}
out:
	json_decref(text);
	if (rc)
		agent_fail(agent, &err);
}

static void up_message(void *context, struct link *link, const struct wire_message *message)
{
	struct agent *agent = context;

	if (message->type == MESSAGE_BEAT || link != agent->up)
		return;
	if (message->node != (uint32_t)agent->params.node_index)
		agent_tree_down(agent, message);
	if (message->node == (uint32_t)agent->params.node_index || message->node == WIRE_ALL)
		obey(agent, message);
}

/* Nobody is above any longer: end what runs, then this process. */
static void up_lost(struct agent *agent, const struct error *why)
{
	if (agent->gone)
		return;
	agent->gone = true;
	if (why) {
		agent->failure = *why;
		error_prefix(&agent->failure, "the connection to the head is lost");
	}
	agent_tree_close(agent, !why);
	agent_ranks_stop(agent, 0);
	/* What supervise has not said yet it says from its dispatch. */
	if (!agent->supervise || agent->told_done)
		agent->finished = true;
}

static void up_ended(void *context, struct link *link, const struct error *why)
{
	struct agent *agent = context;

	if (link == agent->up_next) {
		agent->up_next = NULL;
		stay(agent, why ? why->text : "it closed the connection");
	} else if (link == agent->up) {
		up_lost(agent, why);
		agent->up = NULL;
	}
	link_close(link);
}

static int connect_one(const char *address, int *out, bool *refused, struct error *err)
{
	struct sockaddr_storage to;
	socklen_t size, length = sizeof(int);
	int fd, under_way, error = 0;
	int rc = socket_parse(address, &to, &size, err);

	*refused = false;
	if (rc)
		return rc;
	rc = socket_connect(&to, size, &fd, &under_way, err);
	if (rc) {
		*refused = errno == ECONNREFUSED;
		return rc;
	}
	if (under_way) {
		struct pollfd wait = {.fd = fd, .events = POLLOUT};

		if (poll(&wait, 1, CONNECT_ONE_MS) != 1)
			error = ETIMEDOUT;
		else
			getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
	}
	if (error) {
		close(fd);
		*refused = error == ECONNREFUSED;
		return error_set(err, ERR_NETWORK, "connecting to %s: %s", address,
				 strerror(error));
	}
	*out = fd;
	return 0;
}

/* Try the head's addresses in turn until one answers or the time is over. */
static int connect_head(const char *list, int *out, struct error *err)
{
	int64_t begun = loop_now_ms(), hoped = begun;
	int rc = -ERR_NETWORK;

	do {
		const char *at = list;
		bool refused;

		while (*at) {
			size_t size = strcspn(at, ",");
			char address[128];

			snprintf(address, sizeof address, "%.*s", (int)size, at);
			rc = connect_one(address, out, &refused, err);
			if (!rc)
				return 0;
			if (!refused)
				hoped = loop_now_ms();
			at += size + (at[size] == ',');
		}
		usleep(200000);
	} while (loop_now_ms() < begun + CONNECT_MS && loop_now_ms() < hoped + REFUSED_MS);
	return error_prefix(err, "the head cannot be reached from this node within %d s",
			    (int)((loop_now_ms() - begun) / 1000));
}

/* ---- life ---- */

static void signalled(struct loop_source *source, uint32_t events)
{
	struct agent *agent = (struct agent *)((char *)source - offsetof(struct agent, signals));
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof info) == sizeof info)
		agent_say(agent, MESSAGE_SIGNALLED, 0,
			  json_pack("{s:i}", "signal", (int)info.ssi_signo), NULL, 0);
}

static int start_signals(struct agent *agent, struct error *err)
{
	static const int forwarded[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT};
	sigset_t set;
	int fd;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
		sigaddset(&set, forwarded[i]);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	agent->signals.ready = signalled;
	if (fd < 0)
		return error_set(err, ERR_UNAVAILABLE, "signalfd: %s", strerror(errno));
	return loop_add(agent->loop, &agent->signals, fd, EPOLLIN, err);
}

static void tick(struct agent *agent)
{
	int64_t now = loop_now_ms();
	/* Were we stopped ourselves (SIGSTOP, a frozen cgroup)? Then nobody else was silent. */
	bool slept = now - agent->woke_ms > 3 * BEAT_MS;

	agent->woke_ms = now;
	agent_reach_tick(agent, now);
	if (now - agent->beat_ms < BEAT_MS)
		return;
	agent->beat_ms = now;
	agent_say(agent, MESSAGE_BEAT, 0, NULL, NULL, 0);
	agent_tree_tick(agent, now, slept);
	if (agent->up && slept)
		agent->up->heard_ms = now;
	/* On a socket pair the head's end is noticed at once, and a head that is stopped (^Z) is
	 * no reason to end the job. */
	if (agent->up && agent->params.fd < 0 && !agent->up->paused &&
	    now - agent->up->heard_ms > agent->params.node_timeout_ms) {
		struct error err;

		error_set(&err, ERR_NETWORK, "%s was silent for %d s", agent->up->peer,
			  agent->params.node_timeout_ms / 1000);
		struct link *link = agent->up;

		up_lost(agent, &err);
		agent->up = NULL;
		link_close(link);
	}
	if (agent->up_next && now - agent->up_next->opened_ms > PARENT_MS) {
		struct link *link = agent->up_next;

		agent->up_next = NULL;
		link_close(link);
		stay(agent, "no answer within 5 s");
	}
}

static int64_t next_timeout(const struct agent *agent)
{
	int64_t now = loop_now_ms(), due = agent->beat_ms + BEAT_MS,
		reach = agent_reach_due_ms(agent);

	if (reach >= 0 && reach < due)
		due = reach;
	return due > now ? due - now : 0;
}

static void destroy(struct agent *agent)
{
	agent_pmix_stop(agent);
	agent_ranks_close(agent);
	agent_reach_close(agent);
	agent_tree_close(agent, agent->failure.code == 0);
	link_close(agent->up_next);
	if (agent->up)
		link_finish(agent->up, 1000);
	link_close(agent->up);
	if (agent->signals.fd >= 0)
		close(agent->signals.fd);
	if (agent->port_fd >= 0)
		close(agent->port_fd);
	if (agent->folder[0])
		folder_remove(agent->folder);
	/* A driver may hold the worker for ever; the process ends without it then. */
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WORKER_S;
	if (agent->worker.running &&
	    !pthread_timedjoin_np(agent->worker.machine_thread, NULL, &until))
		agent->worker.running = false;
	if (!agent->worker.running) {
		machine_free(&agent->worker.machine);
		free(agent->detached);
		loop_free(agent->loop);
		free(agent);
	}
}

int agent_run(const struct agent_params *params, struct error *err)
{
	struct agent *agent = calloc(1, sizeof *agent);
	int fd = params->fd, rc;

	if (!agent)
		return error_memory(err, "the agent");
	agent->params = *params;
	agent->port_fd = agent->port = -1;
	agent->signals.fd = agent->supervise_source.fd = agent->server_source.fd =
		agent->worker.done.fd = -1;
	agent->reading = true;
	agent->up_owner = (struct link_owner){agent, up_opened, up_message, up_ended};
	agent->woke_ms = loop_now_ms();
	if (params->name)
		log_identity(params->name, -1);
	/* Before there are threads, and early: it loads PMIx while hwloc looks around. */
	ranks_process_fork(env_get(params->env, "BERTH_MODULE_PATH"), &agent->pmix,
			   &agent->pmix_error);
	rc = loop_new(&agent->loop, err);
	if (!rc)
		rc = start_signals(agent, err);
	if (!rc)
		rc = start_worker(agent, err);
	if (!rc)
		rc = folder_make(env_get(params->env, "TMPDIR"), agent->folder,
				 sizeof agent->folder, err);
	if (!rc && fd < 0)
		rc = connect_head(params->head, &fd, err);
	if (!rc)
		rc = link_open(agent->loop, fd, false, WIRE_CONNECTS, &params->secret, params->job,
			       &agent->up_owner, &agent->up, err);
	if (!rc)
		rc = say_hello(agent, agent->up, err);
	agent->woke_ms = loop_now_ms();
	while (!rc && !agent->finished) {
		rc = loop_once(agent->loop, (int)next_timeout(agent), err);
		agent_pmix_answer(agent);
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

/* SPDX-License-Identifier: BSD-3-Clause */
/* Owns the modules that agent.h lists, and decides what each message means. Everything runs in one
 * thread, in the loop; what could block it has a thread or a process of its own. */
#include "agent/agent.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/discovery.h"
#include "agent/files.h"
#include "agent/listeners.h"
#include "agent/pmix_relay.h"
#include "agent/ports.h"
#include "agent/probes.h"
#include "agent/ranks.h"
#include "agent/ready.h"
#include "agent/signals.h"
#include "agent/uplink.h"
#include "alloc/slurm.h"
#include "base/json.h"
#include "base/log.h"
#include "overlay/children.h"
#include "overlay/socket.h"
#include "process/claims.h"
#include "process/guardian.h"
#include "process/tmpdir.h"

#define FINISH_MS 500 /* for the final frame to each child */

struct agent {
	const struct agent_params *params;
	char dir[128]; /* temporary, private to this agent */
	int dir_lock;  /* see tmpdir_restore */
	json_t *claim; /* what the ranks use, or NULL */
	struct loop *loop;
	struct agent_uplink uplink;
	struct children children; /* the agents below */
	struct agent_signals signals;
	struct agent_discovery *discovery;
	struct agent_probes *probes;
	struct agent_pmix pmix;
	struct agent_ranks ranks;
	struct agent_ports ports;
	struct agent_ready ready;
	struct error failure; /* why the connection to the controller ended */
	bool welcomed, settled, inventory_sent;
	int port;		  /* reserves MASTER_PORT for the ranks; -1: none */
	int blocks;		  /* see agent_ports_bind */
	struct loop_timer second; /* to check the guardian and the port */
	pid_t guardian;
	int at_end_fd;	     /* to it, see guardian_at_end */
	bool guardian_lost;  /* the guardian's death was reported */
	int asked_port;	     /* of --ready; 0: none */
	bool port_unknown;   /* that --ready cannot tell whose a port is was reported */
	bool port_lost;	     /* another user's listening on a reserved port was reported */
	char *scope, *outer; /* for claims_read; NULL: claims are not wanted */
};

/* ---- messages from above and below ---- */

/* Send the inventory once discovery is done and this node is connected to its parent in the
 * tree. */
static void send_inventory(void *context)
{
	struct agent *agent = context;
	const struct inventory *inventory;
	char host[256] = "";
	struct error err;
	json_t *json;

	if (agent->inventory_sent || !agent_discovery_done(agent->discovery) || !agent->settled)
		return;
	agent->inventory_sent = true;
	inventory = agent_discovery_result(agent->discovery, &err);
	json = err.code ? NULL : inventory_to_json(inventory);
	if (!json && !err.code)
		error_memory(&err, "this node's inventory");
	gethostname(host, sizeof host - 1);
	if (json)
		agent_uplink_report(
			&agent->uplink, MESSAGE_INVENTORY,
			&(struct message_inventory){
				agent->port, json,
				agent->scope ? claims_read(agent->dir, agent->scope, agent->outer)
					     : json_array(),
				agent->blocks,
				launcher_is_this_host(agent->params->name) ? NULL : host});
	else
		agent_uplink_fail(&agent->uplink, &err);
}

static void on_settled(void *context)
{
	struct agent *agent = context;

	agent->settled = true;
	send_inventory(agent);
}

/* ---- the agents below ---- */

/* Answers that a subtree sends up as one message are merged here. */
static void on_child_message(void *context, struct connection *connection,
			     const struct wire_message *message)
{
	struct agent *agent = context;
	struct message answer;

	if (message->type == MESSAGE_GATHER) {
		agent_pmix_contribution(&agent->pmix, message);
	} else if (message->type == MESSAGE_PROBED) {
		if (!message_read(message, &answer, NULL))
			agent_probes_merge(agent->probes, &answer.probed);
		message_free(&answer);
	} else {
		agent_uplink_forward(&agent->uplink, message);
	}
}

static void on_child_lost(void *context, size_t node, bool ended, const char *why)
{
	struct agent *agent = context;

	if (!agent->uplink.lost)
		agent_uplink_report(&agent->uplink, MESSAGE_LOST,
				    &(struct message_lost){(int)node, ended, why});
}

static void on_note(void *context, const char *text)
{
	struct agent *agent = context;

	agent_uplink_note(&agent->uplink, "%s", text);
}

/* ---- messages to this node or to all nodes ---- */

static int handle_job(struct agent *agent, const struct message *message, struct error *err)
{
	struct agent_job job = {
		.id = agent->params->job,
		.host = agent->params->name,
		.layout = {.node_index = (int)agent->params->node_index,
			   .node_count = (int)agent->children.node_count},
	};
	int rc = agent_job_read(message, &job, err);

	if (!rc)
		rc = agent_ranks_set_job(&agent->ranks, &job, err);
	if (rc)
		agent_job_free(&job);
	else
		agent->uplink.attempt = message->wire->attempt;
	agent_ports_keep(&agent->ports, message->job.block, message->job.hold_port);
	return rc;
}

static char *strdup_or_null(const char *text)
{
	return text ? strdup(text) : NULL;
}

static int listen_for_children(struct agent *agent, struct error *err)
{
	const struct agent_params *params = agent->params;
	int rc = children_listen(&agent->children, 0, &params->secret, params->job,
				 params->node_index == 0, err);

	if (!rc)
		agent_uplink_report(&agent->uplink, MESSAGE_LISTENING,
				    &(struct message_listening){children_port(&agent->children)});
	return rc;
}

static int handle_welcome(struct agent *agent, const struct message *message, struct error *err)
{
	const struct message_welcome *welcome = &message->welcome;
	struct children_events events = {agent,		NULL,	 on_child_message,
					 on_child_lost, on_note, NULL};
	int rc;

	if (agent->welcomed)
		return error_set(err, ERR_DATA, "WELCOME arrived twice");
	agent->welcomed = true;
	agent->scope = strdup_or_null(welcome->scope);
	agent->outer = strdup_or_null(welcome->outer);
	rc = children_init(&agent->children, agent->loop, (long)agent->params->node_index,
			   (size_t)welcome->nodes, (size_t)welcome->fanout,
			   agent->params->node_timeout_ms, &events, err);
	if (!rc && welcome->port >= 0)
		rc = socket_reserve(welcome->port, &agent->ranks.port_fd, &agent->port, err);
	agent->blocks = agent_ports_bind(&agent->ports, welcome->ports, welcome->seed);
	if (!rc && welcome->listen)
		rc = listen_for_children(agent, err);
	if (rc)
		return rc;
	agent->settled = !welcome->move;
	send_inventory(agent);
	return 0;
}

/* Claim what the ranks will use. If that is impossible, the run goes on as if it were alone; unless
 * another user prevents it, who would make runs use the same GPUs or slots. */
static int handle_claim(struct agent *agent, const struct message *message, struct error *err)
{
	json_t *claim = message->claim.claim, *others = NULL;
	struct error why = {0};
	int rc = claims_take(agent->dir, claim, agent->outer, message->claim.share, &others, &why);

	if (rc == -ERR_DATA)
		return error_set(err, ERR_DATA, "%s cannot be claimed: %s",
				 json_string_value(json_object_get(claim, "what")), why.text);
	if (rc < 0 && json_array_size(json_object_get(claim, "uses")))
		agent_uplink_note(&agent->uplink,
				  "other runs of this job may use the same GPUs, because these "
				  "cannot be claimed: %s",
				  why.text);
	if (!rc) {
		json_decref(agent->claim);
		agent->claim = json_incref(claim);
	}
	agent_uplink_report(&agent->uplink, MESSAGE_CLAIMED,
			    &(struct message_claimed){rc <= 0, others ? others : json_array()});
	return 0;
}

static int handle_move(struct agent *agent, const struct message *message, struct error *err)
{
	agent_uplink_move(&agent->uplink, &message->move);
	return 0;
}

static int handle_tree(struct agent *agent, const struct message *message, struct error *err)
{
	return children_set_detached(&agent->children, message->tree.detached, err);
}

static int handle_probe(struct agent *agent, const struct message *message, struct error *err)
{
	return agent_probes_start(agent->loop, &agent->uplink, &agent->children, agent->params,
				  agent_discovery_result(agent->discovery, NULL), &message->probe,
				  &agent->probes, err);
}

static int handle_start(struct agent *agent, const struct message *message, struct error *err)
{
	return agent_ranks_start(&agent->ranks, message,
				 agent_discovery_result(agent->discovery, NULL)->this_system, err);
}

static int handle_signal(struct agent *agent, const struct message *message, struct error *err)
{
	const struct message_signal *signal = &message->signal;

	if (signal->stop)
		agent_ranks_write_stop_file(&agent->ranks, signal->stop);
	if (signal->signal && !agent_signals_defer(&agent->signals, signal->signal))
		agent_ranks_signal(&agent->ranks, signal->signal);
	return 0;
}

static int handle_end_time(struct agent *agent, const struct message *message, struct error *err)
{
	agent_end_time_write(agent->ranks.dir, message->end_time.end_time, &agent->uplink);
	return 0;
}

static void fail_for_listener(struct agent *agent, int port, uid_t uid)
{
	struct error err;

	agent->port_lost = true;
	error_set(&err, ERR_NETWORK,
		  "another user (uid %ld) listens on port %d, %s: the ranks may have connected to "
		  "that user's process. Run again, with another %s if you set it; if this is a "
		  "container of the job, use --port-hold off",
		  (long)uid, port,
		  port == agent->port ? "the ranks' MASTER_PORT" : "a port of the role",
		  port == agent->port ? "--port" : "port");
	agent_uplink_report(&agent->uplink, MESSAGE_FAILED,
			    &(struct message_failed){err.code, err.text, true});
}

/* Reserved ports are bound, but not listening, until the programs that they are for listen. */
static void check_ports(struct agent *agent)
{
	int ports[LAUNCH_PORTS_MAX + 2], port;
	size_t count = 0;
	uid_t uid;

	if (agent->ranks.port_fd >= 0)
		ports[count++] = agent->port;
	for (int i = 0; agent->ports.held && i < agent->ports.count; i++)
		ports[count++] = agent->ports.first + i;
	if (agent->asked_port)
		ports[count++] = agent->asked_port;
	if (count && agent->ranks.supervise && !agent->port_lost &&
	    listeners_have_foreign(ports, count, &port, &uid))
		fail_for_listener(agent, port, uid);
}

static int handle_settle(struct agent *agent, const struct message *message, struct error *err)
{
	check_ports(agent); /* why a server may have failed */
	agent_ranks_settle(&agent->ranks);
	return 0;
}

static int handle_stop(struct agent *agent, const struct message *message, struct error *err)
{
	agent_ranks_stop(&agent->ranks, message->stop.grace_ms);
	return 0;
}

static int handle_job_over(struct agent *agent, const struct message *message, struct error *err)
{
	if (agent->params->outcome)
		*agent->params->outcome = (struct job_outcome){true, message->job_over.restart,
							       message->job_over.code};
	return 0;
}

static int handle_dump_stacks(struct agent *agent, const struct message *message, struct error *err)
{
	agent_heartbeats_dump_stacks(agent->ranks.heartbeats, agent->params->env,
				     &message->dump_stacks);
	return 0;
}

static int handle_stdin(struct agent *agent, const struct message *message, struct error *err)
{
	if (message->input.rows >= 0)
		agent_stdin_resize(agent->ranks.inputs, &message->input);
	else
		agent_stdin_receive(agent->ranks.inputs, message->wire->data,
				    message->wire->data_size);
	return 0;
}

static int handle_gathered(struct agent *agent, const struct message *message, struct error *err)
{
	agent_pmix_gathered(&agent->pmix, message->wire);
	return 0;
}

static int handle_fetch(struct agent *agent, const struct message *message, struct error *err)
{
	agent_pmix_fetch(&agent->pmix, message);
	return 0;
}

/* Only a listener of the job's is asked, or may get what a command sends. */
static int handle_ask_ready(struct agent *agent, const struct message *message, struct error *err)
{
	const struct message_ask_ready *question = &message->ask_ready;
	struct message_ready answer = {false, ""};
	char text[200], found[INET6_ADDRSTRLEN];
	uid_t uid;

	if (!agent->ranks.job.document)
		return 0;
	switch (question->port
			? listeners_find(question->port, *question->host ? question->host : NULL,
					 agent->ranks.job.container.image, found, &uid)
			: PORT_OURS) {
	case PORT_FOREIGN:
		fail_for_listener(agent, question->port, uid);
		return 0;
	case PORT_FREE:
		agent->asked_port = question->port; /* watch it */
		snprintf(text, sizeof text,
			 *found ? "port %d is not open at %s, only at %s: let the server listen "
				  "there, or at all addresses (0.0.0.0)"
				: "no process listens on port %d",
			 question->port, question->host, found);
		answer.text = text;
		break;
	case PORT_OUTSIDE:
		snprintf(text, sizeof text, "port %d is that of a process outside this run",
			 question->port);
		answer.text = text;
		break;
	case PORT_UNKNOWN:
		if (!agent->port_unknown)
			agent_uplink_note(&agent->uplink,
					  "--ready: it is unknown here whose process listens on "
					  "port %d%s%s; it may be another user's",
					  question->port, *question->host ? " of " : "",
					  question->host);
		agent->port_unknown = true;
		/* fall through */
	case PORT_OURS:
		if (strcmp(question->kind, "listen") != 0) {
			agent_ready_ask(&agent->ready, agent->loop, &agent->uplink,
					&agent->ranks.job, question);
			return 0;
		}
		answer.ready = true;
	}
	agent_uplink_report(&agent->uplink, MESSAGE_READY, &answer);
	return 0;
}

static int handle_fetched(struct agent *agent, const struct message *message, struct error *err)
{
	agent_pmix_fetched(&agent->pmix, message);
	return 0;
}

static const struct {
	enum message_type type;
	int (*handle)(struct agent *agent, const struct message *message, struct error *err);
} handlers[] = {
	{MESSAGE_WELCOME, handle_welcome},   {MESSAGE_MOVE, handle_move},
	{MESSAGE_TREE, handle_tree},	     {MESSAGE_PROBE, handle_probe},
	{MESSAGE_CLAIM, handle_claim},	     {MESSAGE_ASK_READY, handle_ask_ready},
	{MESSAGE_JOB, handle_job},	     {MESSAGE_START, handle_start},
	{MESSAGE_SIGNAL, handle_signal},     {MESSAGE_END_TIME, handle_end_time},
	{MESSAGE_SETTLE, handle_settle},     {MESSAGE_STOP, handle_stop},
	{MESSAGE_JOB_OVER, handle_job_over}, {MESSAGE_DUMP_STACKS, handle_dump_stacks},
	{MESSAGE_STDIN, handle_stdin},	     {MESSAGE_GATHERED, handle_gathered},
	{MESSAGE_FETCH, handle_fetch},	     {MESSAGE_FETCHED, handle_fetched},
};

static void handle_message(struct agent *agent, const struct wire_message *wire)
{
	struct message message;
	struct error err = {0};
	size_t i = 0;
	int rc;

	while (i < sizeof handlers / sizeof *handlers && handlers[i].type != wire->type)
		i++;
	if (i == sizeof handlers / sizeof *handlers) {
		error_set(&err, ERR_DATA, "unknown message type %u", wire->type);
		agent_uplink_fail(&agent->uplink, &err);
		return;
	}
	rc = message_read(wire, &message, &err);
	if (!rc)
		rc = handlers[i].handle(agent, &message, &err);
	message_free(&message);
	if (rc)
		agent_uplink_fail(&agent->uplink, &err);
}

static void on_message(void *context, const struct wire_message *message)
{
	struct agent *agent = context;
	bool own = message->node == (uint32_t)agent->params->node_index;
	struct error err;

	if (!own && children_forward(&agent->children, message, &err))
		log_line(LOG_WARNING, "agent", "%s", err.text);
	if (own || message->node == WIRE_ALL)
		handle_message(agent, message);
}

/* Without a controller, kill the ranks, then exit. */
static void on_lost(void *context, const struct error *why)
{
	struct agent *agent = context;

	if (why) {
		agent->failure = *why;
		error_prefix(&agent->failure, "lost the connection to the controller");
	}
	log_info(LOG_AGENT, "%s",
		 why ? agent->failure.text : "the controller ended the connection");
	/* The children learn in the same way how it ended: a final frame means that it ended
	 * properly. */
	children_close(&agent->children, why ? -1 : FINISH_MS);
	agent_ranks_stop(&agent->ranks, 0);
}

static void on_suspended(void *context, bool on)
{
	struct agent *agent = context;
	int number = on ? SIGSTOP : SIGCONT;

	children_send(&agent->children, MESSAGE_SIGNAL, WIRE_ALL, agent->uplink.attempt, 0,
		      &(struct message_signal){.signal = number}, NULL, 0, NULL);
	agent_ranks_signal(&agent->ranks, number);
}

/* ---- life ---- */

/* The guardian is the process that the launcher or the user started, so killing it means to stop
 * this node. Without it nothing would clean up if this agent died, too. */
static void check_guardian(struct agent *agent)
{
	struct error err;

	if (agent->guardian_lost || getppid() == agent->guardian)
		return;
	agent->guardian_lost = true;
	error_set(&err, ERR_NETWORK, "the agent's guardian process (%d) was killed",
		  (int)agent->guardian);
	agent_uplink_fail(&agent->uplink, &err);
}

/* Cleaners of /tmp remove what looks old, and the directory holds the ranks' stop file, where they
 * write heartbeats, and what tells other runs which GPUs and slots are taken. */
static void check_dir(struct agent *agent)
{
	json_t *others = NULL;

	if (!tmpdir_restore(agent->dir, &agent->dir_lock))
		return;
	agent_uplink_note(&agent->uplink,
			  "%s was removed while the job ran; it was made again, and what the ranks "
			  "had written there is lost. Keep cleaners away from it, or set TMPDIR",
			  agent->dir);
	if (agent->claim && claims_take(agent->dir, agent->claim, NULL, true, &others, NULL) >= 0)
		json_decref(others);
}

static void on_second(struct loop_timer *timer)
{
	struct agent *agent = LOOP_OWNER(timer, struct agent, second);

	loop_timer_after(agent->loop, timer, CONNECTION_HEARTBEAT_MS);
	check_guardian(agent);
	check_ports(agent);
	check_dir(agent);
}

static int run_once(struct agent *agent, struct error *err)
{
	int rc = loop_once(agent->loop, err);
	bool full;

	agent_pmix_complete_local(&agent->pmix);
	agent_ranks_resume_start(&agent->ranks);
	/* If the controller reads too slowly, stop reading from the ranks and from the children.
	 * Pipes and TCP then hold them back, and this process need not keep their output. */
	full = agent_uplink_is_full(&agent->uplink);
	agent_ranks_flush(&agent->ranks, full);
	children_pause(&agent->children, full);
	return rc;
}

static void destroy(struct agent *agent)
{
	/* First what may still report something, then the uplink, and then the directory, which
	 * holds files of all of them. */
	agent_ready_stop(&agent->ready);
	agent_pmix_stop(&agent->pmix);
	agent_ranks_free(&agent->ranks);
	agent_probes_free(agent->probes);
	children_close(&agent->children, agent->failure.code ? -1 : FINISH_MS);
	agent_uplink_close(&agent->uplink);
	agent_signals_close(&agent->signals);
	tmpdir_remove(agent->dir);
	json_decref(agent->claim);
	free(agent->scope);
	free(agent->outer);
	agent_discovery_free(agent->discovery);
	loop_free(agent->loop);
}

/* Initialise all modules of the agent and connect to the controller. */
static int start_agent(struct agent *agent, pid_t launcher_pid, struct error *err)
{
	const struct agent_params *params = agent->params;
	struct agent_uplink_events events = {agent, on_message, on_settled, on_suspended, on_lost};
	int rc;

	agent_uplink_init(&agent->uplink, agent->loop, params, agent->dir, &events);
	/* Fork before there are threads. Do it early, so that the child loads PMIx while hwloc
	 * discovers. */
	agent_pmix_fork(&agent->pmix, agent->loop, &agent->uplink, &agent->children,
			env_get(params->env, "BERTH_MODULE_PATH"), agent->dir);
	agent_ranks_init(&agent->ranks, agent->loop, &agent->uplink, &agent->pmix, agent->dir,
			 agent->at_end_fd);
	rc = agent_signals_open(&agent->signals, agent->loop, &agent->uplink, &agent->ranks,
				agent->guardian, launcher_pid, slurm_in_step(params->env), err);
	if (!rc)
		rc = agent_discovery_start(agent->loop, params->env, params->name, send_inventory,
					   agent, &agent->discovery, err);
	if (!rc && params->name)
		agent_pmix_prepare(&agent->pmix, params->name, (int)params->node_index);
	return rc ? rc : agent_uplink_open(&agent->uplink, agent->signals.source.fd, err);
}

int agent_run(const struct agent_params *params, struct error *err)
{
	struct agent agent = {
		.params = params, .port = -1, .dir_lock = -1, .second.due = on_second};
	/* Before guardian_fork, after which the guardian is the parent. */
	pid_t launcher_pid = getppid();
	int lock_fd, rc;

	secret_protect_process(); /* and thereby the guardian and the PMIx server */
	rc = tmpdir_create(env_get(params->env, "TMPDIR"), agent.dir, sizeof agent.dir, &lock_fd,
			   err);
	if (rc)
		return rc;
	rc = guardian_fork(agent.dir, lock_fd, &agent.guardian, &agent.at_end_fd, err);
	/* A full stderr (a paused pager) must not block the heartbeats: the node would count as
	 * lost. */
	log_set_writer(log_write_or_drop, NULL); /* in this process, which may be a new one */
	if (!rc && params->name)
		log_set_identity(params->name, -1);
	if (!rc)
		rc = loop_new(&agent.loop, err);
	if (rc) {
		tmpdir_remove(agent.dir);
		return rc;
	}
	rc = start_agent(&agent, launcher_pid, err);
	loop_timer_after(agent.loop, &agent.second, CONNECTION_HEARTBEAT_MS);
	/* Run until the connection is lost or closed, and no process of the ranks is left. */
	while (!rc && !(agent.uplink.lost && agent_ranks_are_over(&agent.ranks)))
		rc = run_once(&agent, err);
	/* After WELCOME, only the controller reports why it exited. */
	if (!rc && agent.failure.code && agent.welcomed) {
		log_line(LOG_DEBUG, "agent", "%s", agent.failure.text);
	} else if (!rc && agent.failure.code) {
		*err = agent.failure;
		rc = -err->code;
	}
	destroy(&agent);
	return rc;
}

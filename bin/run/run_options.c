/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of berth run as tables, with their help. --help, the man page and
 * docs/reference/commands.md are made from them, so describe an option only here. */
#include "run/run_options.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

#define BY_HAND_MS 600000 /* until all machines have been started */
#define RUN(member) offsetof(struct run_options, member)

/* "USR1", "SIGUSR1", "10". */
static int read_signal(const char *text, void *out, struct error *err)
{
	const char *name = strncmp(text, "SIG", 3) ? text : text + 3;

	for (int i = 1; i < SIGRTMIN; i++)
		if (error_signal_name(i) && !strcmp(error_signal_name(i), name)) {
			*(int *)out = i;
			return 0;
		}
	if (!number_int("--warn-signal", text, 1, SIGRTMAX, out, NULL))
		return 0;
	return error_set(err, ERR_USAGE,
			 "--warn-signal %.200s: expected a signal such as USR1 or TERM", text);
}

/* Also more than a day. */
static int read_time(const char *name, const char *text, int64_t *out_ms, struct error *err)
{
	int rc = number_duration_ms(name, text, out_ms, err);

	if (rc || *out_ms >= 1000)
		return rc;
	return error_set(err, ERR_USAGE, "%s %.200s: expected a time of at least 1s", name, text);
}

static int read_wait(const char *text, void *out, struct error *err)
{
	struct run_options *options = out;

	options->request.job.share.waits = options->request.place.plan.part = true;
	return text ? read_time("--wait", text, &options->request.job.share.wait_ms, err) : 0;
}

static int read_min_time(const char *text, void *out, struct error *err)
{
	return read_time("--min-time", text, out, err);
}

static int read_warn_before(const char *text, void *out, struct error *err)
{
	int ms = 0, rc = arguments_time("--warn-before", text, &ms, err);

	*(int64_t *)out = ms;
	return rc;
}

static int add_env(const char *text, void *out, struct error *err)
{
	struct run_options *options = out;

	return options_add_env(&options->env, &options->env_count, text, err);
}

/* Shared with berth check. */
const struct arguments_option run_rendezvous_table[] = {
	{.type = ARGUMENTS_GROUP, .group = 11},
	{"master-addr", "ADDRESS",
	 "Set MASTER_ADDR to this numeric address of the first node (default: the best one that "
	 "all nodes reach); not with --nnodes",
	 ARGUMENTS_TEXT, RUN(master_addr)},
	{"nnodes", "N",
	 "By hand: start this line on each of N machines, with --node-rank and --rdzv-endpoint",
	 ARGUMENTS_INT, RUN(request.place.alloc.nnodes), 1, 100000},
	{"node-rank", "R",
	 "By hand: the number of this machine, from 0; program and options are those of machine 0",
	 ARGUMENTS_INT, RUN(request.place.alloc.node_rank), 0, 99999, .given = RUN(has_node_rank)},
	{"rdzv-endpoint", "HOST:PORT",
	 "By hand: the name or address of the first machine, where it waits for the others, and a "
	 "free port there",
	 ARGUMENTS_TEXT, RUN(rdzv_endpoint)},
	{"port", "PORT", "Set MASTER_PORT (default: a free port)", ARGUMENTS_INT,
	 RUN(request.place.plan.port), 1, 65535},
	{0},
};

const struct arguments_option run_options_table[] = {
	{.type = ARGUMENTS_GROUP, .group = 11},
	{"nodes", "N", "Use N nodes (default: all of the allocation)", ARGUMENTS_INT,
	 RUN(request.nodes), 1, 100000, .letter = 'N'},
	{"share", "yes|no",
	 "If other runs of this job leave too few GPUs for the ranks: use theirs, too, with a "
	 "warning, or fail (default: yes)",
	 ARGUMENTS_BOOL, RUN(request.job.share.refuse), 1},
	{"wait", "TIME",
	 "Wait until what the ranks need is free of other runs of this job, in the order in which "
	 "the runs were started; fail after TIME (default: wait forever)",
	 ARGUMENTS_READ, .read = read_wait, .optional = true},
	{"ports", "N",
	 "Reserve N consecutive ports, the same ones on all nodes, in BERTH_PORTS (20480-20495)",
	 ARGUMENTS_INT, RUN(request.launch.ports), 1, LAUNCH_PORTS_MAX},
	{"port-hold", "on|off",
	 "Keep MASTER_PORT, while rank 0 runs, and BERTH_PORTS bound without listening, so that no "
	 "other job takes them, and fail if another user listens on MASTER_PORT (default: on); off "
	 "is for programs that bind them without SO_REUSEADDR",
	 ARGUMENTS_BOOL, RUN(request.job.port_hold), 0},
	{"launcher", "fork|srun|prterun|mpirun|pals|tm|ssh|hand|loopback",
	 "Start the agents with fork (this machine), srun (Slurm), prterun, mpirun, pals or tm "
	 "(PBS), ssh, hand (you start berth run on each machine) or loopback (simulated nodes "
	 "here); default: what fits the allocation",
	 ARGUMENTS_TEXT, RUN(request.launcher)},
	{"node-timeout", "TIME",
	 "Treat a node as lost if its agent is silent for TIME (default: 8s; with loopback "
	 "0.05s more per node)",
	 ARGUMENTS_TIME, RUN(request.launch.node_timeout_ms)},
	{"launch-timeout", "TIME",
	 "If the launcher that berth chose has started no agent within TIME, try the next one that "
	 "fits, once (default: 10s and 0.05s per node)",
	 ARGUMENTS_TIME, RUN(request.launch.launch_timeout_ms)},
	{"start-timeout", "TIME",
	 "Fail if not all agents have started within TIME (default: 60s, by hand 10m)",
	 ARGUMENTS_TIME, RUN(request.launch.start_timeout_ms), .given = RUN(has_start_timeout)},
	{"nested", NULL,
	 "Start a job even if this is one of several ranks of mpirun, torchrun or another berth "
	 "run",
	 ARGUMENTS_FLAG, RUN(nested)},
	{"fan-out", "K", "Connect at most K agents to one agent in the tree (default: 32)",
	 ARGUMENTS_INT, RUN(request.launch.fan_out), 1, 4096},
	{.type = ARGUMENTS_GROUP, .group = 15, .doc = "After a failure"},
	{"max-restarts", "R",
	 "Restart the ranks in the same allocation, at most R times, after a rank, a node or the "
	 "network has failed (default: 0)",
	 ARGUMENTS_INT, RUN(request.restarts.max_restarts), 0, 10000},
	{"spares", "N",
	 "Keep the last N nodes idle, as replacements for nodes that are lost or have failed twice",
	 ARGUMENTS_INT, RUN(request.restarts.spares), 0, 100000},
	{"min-nodes", "N",
	 "If no spare is left, restart on fewer nodes, at least N (default: as many as at first); "
	 "--ranks shrinks in proportion",
	 ARGUMENTS_INT, RUN(request.restarts.min_nodes), 1, 100000},
	{"hang-timeout", "TIME",
	 "Fail if no rank makes a step or prints a line for TIME, and show the stack of the rank "
	 "that is behind (default: only a note, after 10 minutes)",
	 ARGUMENTS_TIME, RUN(request.job.hang_timeout_ms)},
	{.type = ARGUMENTS_GROUP, .group = 12, .doc = "The ranks' environment"},
	{"per-node", NULL,
	 "Start one process per node, with PET_* set, for programs that start their own ranks "
	 "(torchrun)",
	 ARGUMENTS_FLAG, RUN(request.place.plan.per_node)},
	{"env", "NAME=VALUE", "Set a variable for the ranks (repeatable)", ARGUMENTS_READ,
	 .read = add_env},
	{"pmix", "auto|on|off",
	 "Provide PMIx for MPI programs: if it is missing, auto continues without it, on fails "
	 "(default: auto)",
	 ARGUMENTS_CHOICE, RUN(request.job.pmix)},
	{"pty", NULL,
	 "Give rank 0 a terminal of its own, for a shell, an editor or a debugger; standard input "
	 "must be a terminal",
	 ARGUMENTS_FLAG, RUN(request.job.pty)},
	{.type = ARGUMENTS_GROUP, .group = 14, .doc = "The job's end"},
	{"end-time", "UNIX|+TIME",
	 "The job's time limit, as Unix seconds or from now (+90m): berth warns before it, and "
	 "does not end the job (default: BERTH_END_TIME, else the scheduler's)",
	 ARGUMENTS_TEXT, RUN(request.end_time)},
	{"min-time", "TIME",
	 "Start the ranks only if TIME is left before the time limit, else exit with code 75",
	 ARGUMENTS_READ, RUN(request.job.end.min_time_ms), .read = read_min_time},
	{"warn-before", "TIME",
	 "Create BERTH_STOP_FILE on all nodes TIME before the time limit (default: 120s with "
	 "--warn-signal, else no warning)",
	 ARGUMENTS_READ, RUN(request.job.end.warn_before_ms), .read = read_warn_before},
	{"warn-signal", "NAME",
	 "Also send this signal to all ranks then, such as USR1, for programs that save when they "
	 "receive it",
	 ARGUMENTS_READ, RUN(request.job.end.warn_signal), .read = read_signal},
	{"stop-grace", "TIME",
	 "After SIGTERM, SIGINT, SIGHUP or SIGQUIT, or after one rank has saved and stopped, give "
	 "all ranks TIME to save, then kill them (default: 30s). After a signal of the scheduler, "
	 "berth leaves the killing to it",
	 ARGUMENTS_TIME, RUN(request.job.end.stop_grace_ms)},
	{"requeue", NULL,
	 "Requeue the job if it stopped with its work saved (code 75), was preempted, or lost a "
	 "node: with scontrol requeue, or qsub of the same script",
	 ARGUMENTS_FLAG, RUN(request.requeue)},
	{"max-requeues", "N", "Requeue the job at most N times (default: 100)", ARGUMENTS_INT,
	 RUN(request.max_requeues), 1, 100000},
	{.type = ARGUMENTS_GROUP, .group = 13, .doc = "Output"},
	{"log-dir", "DIR",
	 "Write each rank's output also to its own file, DIR/rank-0000.log, and the report to "
	 "DIR/report.json",
	 ARGUMENTS_TEXT, RUN(request.job.log_dir)},
	{"label", NULL, "Start each line of output with [RANK]", ARGUMENTS_FLAG, RUN(label)},
	{"collapse", "auto|on|off",
	 "Print a line that several ranks write within a second once, as [0-1023] LINE (default: "
	 "auto, on a terminal with more than 16 ranks)",
	 ARGUMENTS_CHOICE, RUN(collapse)},
	{"report", "FILE",
	 "Write to FILE how the job ended, as JSON (berth.run/1); see berth report", ARGUMENTS_TEXT,
	 RUN(request.report)},
	{"dry-run", NULL, "Show what would be started, and start nothing", ARGUMENTS_FLAG,
	 RUN(request.dry_run)},
	{"json", NULL, "With --dry-run: print JSON", ARGUMENTS_FLAG, RUN(json)},
	{"quiet", NULL, "Print errors only", ARGUMENTS_FLAG, RUN(request.quiet), .letter = 'q'},
	{"verbose", NULL, "Print more, such as the time of each stage", ARGUMENTS_FLAG,
	 RUN(verbose), .letter = 'v'},
	{0},
};

void run_options_default(struct run_options *options)
{
	options->request.job.port_hold = true;
	options->request.max_requeues = 100;
	options->request.launch.start_timeout_ms = 60000;
	options->request.place.alloc.node_rank = -1;
}

void run_options_free(struct run_options *options)
{
	free(options->env);
	options->env = NULL;
	options->env_count = 0;
	container_free(&options->request.job.container);
	role_options_free(&options->roles);
}

int run_options_roles(const struct run_options *options, struct error *err)
{
	const struct plan_request *plan = &options->request.place.plan;
	static const char place[] = "write it after --role NAME";
	static const char one[] = "Ray's nodes and the driver are one process per node";
	const char *own = options->roles.ray ? one : place;
	const struct {
		const char *name, *why;
		bool given;
	} refused[] = {
		{"--ray", "it has roles of its own", options->roles.ray && options->roles.first},
		{"-n", own, plan->ranks != 0},
		{"--ranks-per-node", own, plan->ranks_per_node != 0},
		{"--gpus-per-rank", own, plan->gpus_per_rank != 0},
		{"--per-node", own, plan->per_node},
		{"--ports", own, options->request.launch.ports != 0},
		{"--master-addr", "each role has an address of its own",
		 options->master_addr != NULL},
		{"--port", "each role has a port of its own", plan->port != 0},
		{"--spares", "no role can use another one's nodes",
		 options->request.restarts.spares != 0},
		{"--min-nodes", "no role can use another one's nodes",
		 options->request.restarts.min_nodes != 0},
		{"--wait", "roles wait for each other only", options->request.job.share.waits},
		{"--nnodes", "roles need agents that berth starts",
		 options->request.place.alloc.nnodes != 0},
		{"--collapse on", "lines of several programs differ",
		 options->collapse == RUN_COLLAPSE_ON},
	};

	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
		if (refused[i].given)
			return error_set(err, ERR_USAGE, "%s conflicts with %s: %s",
					 refused[i].name, options->roles.first ? "--role" : "--ray",
					 refused[i].why);
	return 0;
}

int run_options_conflicts(const struct run_options *options, struct error *err)
{
	/* An option that would have no effect is an error: its user expects one. */
	if (options->json && !options->request.dry_run)
		return error_set(err, ERR_USAGE,
				 "--json needs --dry-run; --report FILE writes how a job ended as "
				 "JSON");
	if (options->roles.ray_args && !options->roles.ray)
		return error_set(err, ERR_USAGE, "--ray-args needs --ray");
	if (options->request.quiet && options->verbose)
		return error_set(err, ERR_USAGE, "--quiet conflicts with --verbose");
	if (options->request.job.pty && (options->label || options->collapse == RUN_COLLAPSE_ON))
		return error_set(err, ERR_USAGE,
				 "--pty conflicts with %s: a terminal's output has no lines",
				 options->label ? "--label" : "--collapse on");
	return 0;
}

int run_options_by_hand(struct run_options *options, struct error *err)
{
	if (!options->request.place.alloc.nnodes) {
		if (options->has_node_rank)
			return error_set(
				err, ERR_USAGE,
				"--node-rank needs --nnodes and --rdzv-endpoint HOST:PORT");
		if (options->rdzv_endpoint)
			return error_set(err, ERR_USAGE,
					 "--rdzv-endpoint %.120s: needs --nnodes and --node-rank, "
					 "for machines on which you start berth yourself. To set "
					 "MASTER_ADDR, use --master-addr ADDRESS",
					 options->rdzv_endpoint);
		options->request.place.plan.master_addr = options->master_addr;
		return 0;
	}
	if (options->master_addr)
		return error_set(err, ERR_USAGE,
				 "--master-addr %.120s: conflicts with --nnodes. Use "
				 "--rdzv-endpoint HOST:PORT for the place where the first machine "
				 "waits; choose the network of the ranks with --iface or --subnet",
				 options->master_addr);
	options->request.place.alloc.rendezvous = options->rdzv_endpoint;
	/* A user starts the machines one after the other. */
	if (!options->has_start_timeout)
		options->request.launch.start_timeout_ms = BY_HAND_MS;
	return 0;
}

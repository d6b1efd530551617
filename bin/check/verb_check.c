/* SPDX-License-Identifier: BSD-3-Clause */
/* berth check: are all nodes, and the network between them, fit for a job? */
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "base/json.h"
#include "base/log.h"
#include "check/check.h"
#include "check/check_text.h"
#include "container_options.h"
#include "run/run_options.h"
#include "show.h"
#include "submit/submit.h"
#include "verb.h"

struct arguments {
	struct run_options run; /* options shared with a job */
	const char *checkpoint;
	bool json, verbose, prober;
};

#define CHECK(member) offsetof(struct arguments, member)
#define RUN(member) offsetof(struct arguments, run.member)

static const struct arguments_option options[] = {
	{.type = ARGUMENTS_GROUP, .group = 1},
	{"nodes", "N",
	 "Check the first N nodes of the allocation, or with --launcher loopback simulate N nodes "
	 "(default: all)",
	 ARGUMENTS_INT, RUN(request.nodes), 1, 100000, .letter = 'N'},
	{"hosts", "LIST", "Check these hosts, such as n[1-4],gpu7", ARGUMENTS_TEXT,
	 RUN(request.place.alloc.hosts)},
	{"hostfile", "FILE", "Check the hosts in FILE, as for berth run", ARGUMENTS_TEXT,
	 RUN(request.place.alloc.hostfile)},
	{"iface", "NAME", "Use the network of this interface of the first node", ARGUMENTS_TEXT,
	 RUN(request.place.plan.iface)},
	{"subnet", "CIDR", "Use the network with this address range", ARGUMENTS_TEXT,
	 RUN(request.place.plan.subnet)},
	{"launcher", "NAME", "Start the agents this way, as for berth run", ARGUMENTS_TEXT,
	 RUN(request.launcher)},
	{"start-timeout", "TIME",
	 "Fail if not all agents have started within TIME (default: 20s, with --nnodes 10m)",
	 ARGUMENTS_TIME, RUN(request.launch.start_timeout_ms), .given = RUN(has_start_timeout)},
	{.type = ARGUMENTS_GROUP, .group = 2},
	{"ckpt", "DIR",
	 "Check this checkpoint directory on every node; small files are written there and removed",
	 ARGUMENTS_TEXT, CHECK(checkpoint)},
	{.type = ARGUMENTS_GROUP, .group = 3},
	{"json", NULL, "Print one JSON object (berth.check/1) instead of a table", ARGUMENTS_FLAG,
	 CHECK(json)},
	{"verbose", NULL, "Print more on standard error", ARGUMENTS_FLAG, CHECK(verbose),
	 .letter = 'v'},
	{"prober", NULL, NULL, ARGUMENTS_FLAG, CHECK(prober), .hidden = true},
	{0},
};

static int check_options(void *input, struct error *err)
{
	struct arguments *arguments = input;

	return run_options_by_hand(&arguments->run, err);
}

static void on_note(void *context, enum log_level level, const char *text)
{
	const struct arguments *arguments = context;

	if (level <= LOG_NOTE || arguments->verbose)
		log_user(level, "%s", text);
}

/* Make path absolute from the current directory, which need not be the ranks'. */
static int absolute(const char *path, const char *cwd, char **out, struct error *err)
{
	*out = NULL;
	if (!path)
		return 0;
	if (!*path)
		return error_set(err, ERR_USAGE, "--ckpt is empty; is a variable unset?");
	if (*path == '/')
		*out = strdup(path);
	else if (asprintf(out, "%s/%s", cwd ? cwd : ".", path) < 0)
		*out = NULL;
	return *out ? 0 : error_memory(err, "--ckpt");
}

static int run_check(const struct arguments *arguments, const struct run_setup *setup, json_t **out,
		     struct error *err)
{
	const struct container *container = &arguments->run.request.job.container;
	JSON_AUTO json = container->image ? container_to_json(container, setup->env) : NULL;
	const char *const prober[] = {setup->berth_path, "check", "--prober", NULL};
	char *checkpoint = NULL;
	struct check_request request = {
		.launch = &setup->launch,
		.prober = prober,
		.version = BERTH_VERSION,
		.container = json,
		.plan_request = arguments->run.request.place.plan,
		.note = on_note,
		.context = (void *)arguments,
	};
	int rc = absolute(arguments->checkpoint, setup->cwd, &checkpoint, err);

	request.checkpoint = checkpoint;
	if (!rc)
		rc = check_run(&request, out, err);
	free(checkpoint);
	return rc;
}

static int show(const struct arguments *arguments, const struct run_setup *setup,
		const json_t *result, struct error *err)
{
	size_t faults = check_faults(result), nodes = setup->alloc.node_count;

	if (!arguments->json)
		check_print(result, setup->env);
	else if (json_print(result, stdout, err))
		return -err->code;
	fflush(stdout); /* before what follows on stderr */
	if (faults)
		return error_set(err, ERR_NETWORK, "%zu fault%s on %zu node%s", faults,
				 plural(faults), nodes, plural(nodes));
	if (nodes > 1)
		log_user(LOG_NOTE,
			 "NCCL, gloo and MPI do not authenticate peers: anyone who can connect to "
			 "these nodes can disturb a job (SECURITY.md)");
	log_user(LOG_NOTE, "%zu node%s checked, no fault", nodes, plural(nodes));
	return 0;
}

int verb_check(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{options},
			   {container_options_table, RUN(request.job.container)},
			   {run_rendezvous_table, offsetof(struct arguments, run)}},
		.positional = ARGUMENTS_NONE,
		.check = check_options,
		.doc = "Examine every node of the job and the network between them, in seconds: "
		       "who reaches whom, versions, limits, GPUs, directories, and an all-reduce "
		       "with checked sums over the NIC that a job would use.\vExits with code 76 "
		       "if it finds a fault; the table names the node, what was seen and how to "
		       "fix it.",
	};
	static const char *const itself[] = {"/proc/self/exe", NULL};
	struct arguments arguments = {0};
	struct run_setup setup = {.request = &arguments.run.request};
	struct error err = {0};
	JSON_AUTO result = NULL;
	int rc;

	run_options_default(&arguments.run);
	arguments.run.request.launch.start_timeout_ms = 20000;
	arguments_parse(&command, argc, argv, &arguments);
	if (arguments.prober)
		check_prober(env_capture(), BERTH_VERSION);
	rc = container_options_prepare(&arguments.run.request.job.container, &err);
	arguments.run.request.program = itself;
	if (!rc)
		rc = submit_environment(NULL, 0, &setup.env, &err);
	if (!rc)
		rc = run_prepare(&setup, &err);
	if (!rc && run_is_agent(&setup)) {
		rc = run_as_agent(&setup, &err);
		run_setup_free(&setup);
		run_options_free(&arguments.run);
		return rc < 0 ? verb_fail(&err) : rc;
	}
	if (!rc)
		rc = run_check_rendezvous(&setup, &err);
	if (!rc)
		rc = run_pull_images(&setup, &err);
	if (!rc)
		rc = run_check(&arguments, &setup, &result, &err);
	if (!rc)
		rc = show(&arguments, &setup, result, &err);
	run_setup_free(&setup);
	run_options_free(&arguments.run);
	return rc ? verb_fail(&err) : 0;
}

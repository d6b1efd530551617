/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run: a program as a job. */
#include <string.h>

#include "base/log.h"
#include "container_options.h"
#include "run/run_program.h"
#include "verb.h"

struct arguments {
	struct run_options run;
	struct role role; /* of options that are refused */
	char **program;	  /* argv from PROGRAM on; with --role, from behind the first role's name */
};

/* All that follows is the first role's, and that of the others. */
static const struct arguments_option role_table[] = {
	{.type = ARGUMENTS_GROUP, .group = 16, .doc = "Several programs"},
	{"role", "NAME",
	 "Start several programs in this job, each with ranks and nodes of its own: --role NAME "
	 "[OPTIONS] -- PROGRAM : --role NAME [OPTIONS] -- PROGRAM. A role takes -N, -n, "
	 "--ranks-per-node, --per-node, --gpus-per-rank (0: none), --ports, --env and the options "
	 "below from --service on; the job's options stand before the first --role",
	 ARGUMENTS_REST, offsetof(struct arguments, program)},
	{0},
};

static int given_role(void *filled, const char *name, const char *text, struct error *err)
{
	struct arguments *arguments = filled;

	arguments->run.roles.first = text;
	return 0;
}

static int check_arguments(void *input, struct error *err)
{
	struct arguments *arguments = input;
	int rc = run_options_by_hand(&arguments->run, err);

	if (!rc)
		rc = run_options_conflicts(&arguments->run, err);
	/* Without a program, arguments_parse reports that next. */
	if (!rc && (arguments->run.roles.first || arguments->run.roles.ray))
		return run_options_roles(&arguments->run, err);
	return rc || !arguments->program
		       ? rc
		       : run_check_launchers(&arguments->run.request.place.plan,
					     (const char *const *)arguments->program, err);
}

/* Roles whose start cannot mean that they can be used. */
static void note_unready(const struct role_options *roles)
{
	struct role_rule rules[ROLES_MAX];
	uint64_t awaited = 0;

	if (roles_rules(roles->roles, roles->count, rules, NULL))
		return;
	for (size_t i = 0; i < roles->count; i++)
		awaited |= rules[i].waits;
	for (size_t i = 0; i < roles->count; i++) {
		const struct role *role = &roles->roles[i];

		if (role->service && !role->ready.text && awaited >> i & 1)
			log_user(LOG_NOTE,
				 "role %s has no --ready: other roles start as soon as its program "
				 "runs. With --ready tcp they wait until it listens at {port}",
				 role->name);
	}
}

/* program becomes that of the first role; with --ray it stays the driver. */
static int read_roles(struct arguments *arguments, struct error *err)
{
	struct role_options *roles = &arguments->run.roles;
	int rc;

	roles->ray_inside = arguments->run.request.job.container.image != NULL;
	rc = role_options_read(roles, arguments->program, err);
	for (size_t i = 0; !rc && i < roles->count; i++) {
		struct plan_request own = arguments->run.request.place.plan;

		own.per_node = roles->roles[i].per_node;
		rc = run_check_launchers(&own, roles->roles[i].argv, err);
		roles->roles[i].per_node = own.per_node;
		if (!rc && roles->roles[i].restart && !roles->roles[i].replica &&
		    !arguments->run.request.restarts.max_restarts)
			log_user(LOG_WARNING, "role %s: --restart needs --max-restarts R",
				 roles->roles[i].base);
	}
	if (!rc && !arguments->run.request.quiet)
		note_unready(roles);
	arguments->run.request.roles = roles->roles;
	arguments->run.request.role_count = roles->count;
	arguments->run.request.ray = roles->ray;
	if (!rc && !roles->ray)
		arguments->program = (char **)(uintptr_t)roles->roles[0].argv;
	return rc;
}

/* A role without an image is in that of the job. */
static int prepare_containers(struct run_options *options, struct error *err)
{
	int rc = container_options_prepare(&options->request.job.container, err);

	for (size_t i = 0; !rc && i < options->roles.count; i++) {
		rc = container_options_prepare(&options->roles.roles[i].container, err);
		if (rc)
			error_prefix(err, "role %s", options->roles.roles[i].name);
	}
	return rc;
}

int verb_run(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{options_table, offsetof(struct arguments, run.request.place)},
			   {run_options_table, offsetof(struct arguments, run)},
			   {container_options_table,
			    offsetof(struct arguments, run.request.job.container)},
			   {run_rendezvous_table, offsetof(struct arguments, run)},
			   {role_table, 0, given_role},
			   {role_options_table, offsetof(struct arguments, run.roles)},
			   {role_options_own_table, offsetof(struct arguments, role),
			    role_options_refuse}},
		.positional = {.type = ARGUMENTS_REST,
			       .offset = offsetof(struct arguments, program)},
		.from_file = true,
		.check = check_arguments,
		.usage = "[--] PROGRAM [ARGUMENTS]",
		.doc = "Examples:\n"
		       "    berth run -- python train.py\n"
		       "    berth run -n 4 --log-dir logs -- python train.py\n"
		       "    berth run --max-restarts 3 --requeue -- python train.py\n\n"
		       "Run PROGRAM as a job with one rank per GPU (or slot) of the allocation. "
		       "Each rank gets its number, its GPU, cores and NICs, and an address where "
		       "all ranks meet.\vExits with the code of the first rank that failed (128+N "
		       "for a signal), or with one of berth's own: 64 usage, 65 bad data, 66 input "
		       "missing, 69 something required is unavailable, 73 output cannot be "
		       "created, 74 I/O failed, 75 stopped with work saved, 76 a node or the "
		       "network failed.",
	};
	struct arguments arguments = {0};
	struct error err = {0};
	int rc;

	run_options_default(&arguments.run);
	arguments_parse(&command, argc, argv, &arguments);
	rc = arguments.run.roles.first || arguments.run.roles.ray ? read_roles(&arguments, &err)
								  : 0;
	if (!rc)
		rc = prepare_containers(&arguments.run, &err);
	if (rc && arguments_file())
		error_prefix(&err, "%s", arguments_file());
	arguments.run.request.program = (const char *const *)arguments.program;
	rc = rc ? verb_fail(&err) : run_program(&arguments.run);
	run_options_free(&arguments.run);
	return rc;
}

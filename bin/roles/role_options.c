/* SPDX-License-Identifier: BSD-3-Clause */
#include "roles/role_options.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "container_options.h"
#include "options.h"
#include "roles/ray.h"

#define ROLE(member) offsetof(struct role, member)

/* Before the first --role. */
const struct arguments_option role_options_table[] = {
	{.type = ARGUMENTS_GROUP, .group = 16, .doc = "Several programs"},
	{"separator", "WORD",
	 "What separates the programs (default: \":\"; an argument \"\\:\" is a \":\" for the "
	 "program)",
	 ARGUMENTS_TEXT, offsetof(struct role_options, separator),
	 .expected = "a word that no program has as an argument"},
	{"ray", NULL,
	 "Run PROGRAM as a driver of Ray, with RAY_ADDRESS set, once a Ray cluster of berth's own "
	 "runs on all nodes; end that with it",
	 ARGUMENTS_FLAG, offsetof(struct role_options, ray)},
	{"ray-args", "OPTIONS",
	 "With --ray: more options for ray start, on all nodes, in the syntax of a shell",
	 ARGUMENTS_TEXT, offsetof(struct role_options, ray_args), .expected = "options"},
	{0},
};

static int add_env(const char *text, void *out, struct error *err)
{
	struct role *role = out;

	return options_add_env(&role->env, &role->env_count, text, err);
}

static int read_ready(const char *text, void *out, struct error *err)
{
	return roles_read_ready(text, out, err);
}

int role_options_refuse(void *filled, const char *name, const char *text, struct error *err)
{
	return error_set(err, ERR_USAGE,
			 "the options of a role, such as --service, come after --role NAME");
}

/* What only roles have; the job's command line has it for --help. */
const struct arguments_option role_options_own_table[] = {
	{"service", NULL,
	 "Of a role: it serves the others, which start once it is ready. berth ends it when they "
	 "have ended; the job fails if it ends before. It has one process per node by default",
	 ARGUMENTS_FLAG, ROLE(service)},
	{"restart", NULL,
	 "Of a service: if it fails, restart it alone, while the others run, at most "
	 "--max-restarts times",
	 ARGUMENTS_FLAG, ROLE(restart)},
	{"ready", "WHAT",
	 "Of a role: it is ready once this works: tcp, tcp:PORT, http:/PATH, "
	 "http:[HOST]:PORT/PATH (2xx), file:PATH or command:LINE (exit code 0), asked on its "
	 "first node; by default at BERTH_ROLE_NAME_ADDR and BERTH_ROLE_NAME_PORT; a PORT +K is "
	 "port K, from 0, of --ports",
	 ARGUMENTS_READ, ROLE(ready), .read = read_ready},
	{"ready-timeout", "TIME",
	 "Of a role: fail if it is not ready within TIME of its start (default: 10m)",
	 ARGUMENTS_TIME, ROLE(ready.timeout_ms)},
	{"after", "ROLE",
	 "Of a role: start it once ROLE, or each of ROLE,ROLE, is ready; without --service and "
	 "--ready, once it has ended with code 0; none: at once (default: a service at once, "
	 "others after all services)",
	 ARGUMENTS_TEXT, ROLE(after), .expected = "a role's name, or none"},
	{"overlap", NULL,
	 "Of a role: use the GPUs and cores of other roles, too, on the job's first nodes: for a "
	 "program that mostly waits",
	 ARGUMENTS_FLAG, ROLE(overlap)},
	{"het-group", "N",
	 "Of a role: use the nodes of this group, from 0, of a heterogeneous Slurm job, or of "
	 "this part of a PBS job's select (default: of all)",
	 ARGUMENTS_INT, ROLE(group), 0, 1000},
	{"chunk", .type = ARGUMENTS_ALIAS},
	{"replicas", "R",
	 "Of a role: start R copies of it, NAME.0 and so on, each with nodes, ports and readiness "
	 "of its own",
	 ARGUMENTS_INT, ROLE(replicas), 1, ROLES_MAX},
	{"need", "K",
	 "Of a service with --replicas: require K of them to be ready, and to stay up (default: "
	 "all)",
	 ARGUMENTS_INT, ROLE(need), 1, ROLES_MAX},
	{"on", "ROLE",
	 "Of a role: run it on the nodes of ROLE, or with ROLE:first on the first node of each "
	 "replica; it gets GPUs only with --gpus-per-rank",
	 ARGUMENTS_TEXT, ROLE(on), .expected = "a role's name"},
	{"chdir", "DIR", "Of a role: start its ranks in DIR", ARGUMENTS_TEXT, ROLE(chdir),
	 .expected = "a directory"},
	{0},
};

static const struct arguments_option table[] = {
	{"role", "NAME", "The role's name", ARGUMENTS_TEXT, ROLE(name), .expected = "a name"},
	{"nodes", "N", "Use N nodes (default: as many as -n needs, else all that are left)",
	 ARGUMENTS_INT, ROLE(nodes), 1, 100000, .letter = 'N'},
	{"ranks", "N", "Start N ranks", ARGUMENTS_INT, ROLE(ranks), 1, OPTIONS_RANKS_MAX,
	 .letter = 'n'},
	{"np", .type = ARGUMENTS_ALIAS, .hidden = true},
	{"ranks-per-node", "K", "Start K ranks on each node", ARGUMENTS_INT, ROLE(ranks_per_node),
	 1, OPTIONS_RANKS_MAX},
	{"nproc-per-node", .type = ARGUMENTS_ALIAS},
	{"gpus-per-rank", "K",
	 "Give each rank K GPUs; 0: none, on the job's first nodes beside other roles",
	 ARGUMENTS_INT, ROLE(gpus_per_rank), 0, 1024},
	{"per-node", NULL, "Start one process per node, with PET_* set", ARGUMENTS_FLAG,
	 ROLE(per_node)},
	{"ports", "N",
	 "Reserve N consecutive ports, the same ones on all its nodes, in BERTH_PORTS "
	 "(20480-20495)",
	 ARGUMENTS_INT, ROLE(ports), 1, LAUNCH_PORTS_MAX},
	{"env", "NAME=VALUE", "Set a variable for the role's ranks (repeatable)", ARGUMENTS_READ,
	 .read = add_env},
	{0},
};

static int check(void *input, struct error *err)
{
	const struct role *role = input;

	if (!role->name)
		return error_set(
			err, ERR_USAGE,
			"a program after another one begins with --role NAME; write \\: for an "
			"argument ':', or name another separator with --separator WORD");
	if (role->need && (!role->service || role->need > role->replicas))
		return error_set(err, ERR_USAGE,
				 "--need %d is for a service with --replicas, and at most as many",
				 role->need);
	if (role->restart && !role->service)
		return error_set(err, ERR_USAGE, "--restart is for a role with --service");
	return 0;
}

static void read_role(int argc, char **argv, struct role *role)
{
	static const struct arguments_command command = {
		.tables = {{table},
			   {role_options_own_table},
			   {container_options_table, ROLE(container)}},
		.positional = {.type = ARGUMENTS_REST, .offset = ROLE(argv)},
		.check = check,
		.usage = "[--] PROGRAM [ARGUMENTS]",
		.doc = "One of several programs of a job, after --role.",
		.unknown = "Options of the whole job stand before the first --role",
	};

	*role = (struct role){.gpus_per_rank = -1, .group = -1, .ready.timeout_ms = JOB_READY_MS};
	arguments_parse(&command, argc, argv, role);
	for (size_t i = 1; role->argv[0] && role->argv[i]; i++)
		if (!strcmp(role->argv[i], "--role") && role->argv[i + 1])
			log_user(LOG_WARNING,
				 "--role %s is an argument of role %s's program: write ':' before "
				 "it if another program begins there",
				 role->argv[i + 1], role->name);
	role->on_first = role->on && strlen(role->on) > 6 &&
			 !strcmp(role->on + strlen(role->on) - 6, ":first");
	if (role->on_first)
		role->on = strndup(role->on, strlen(role->on) - 6);
	if (role->on && role->gpus_per_rank < 0)
		role->gpus_per_rank = 0;
	/* Of replicas, none gets what is left. */
	if (role->replicas && !role->nodes && !role->ranks && !role->on) {
		role->ranks = role->gpus_per_rank > 0 && !role->ranks_per_node;
		role->nodes = !role->ranks;
	}
	/* A server is one process on each of its nodes. */
	if ((role->service || role->on) && !role->ranks && !role->ranks_per_node) {
		role->per_node |= role->gpus_per_rank < 0;
		role->ranks_per_node = !role->per_node;
	}
}

/* Add the roles of a line: one, or its replicas, each with values of its own. */
static int add_roles(struct role_options *options, char **line, struct error *err)
{
	int words = 0, replica = 0;
	struct role *role;

	while (line[words])
		words++;
	do {
		if (options->count == ROLES_MAX)
			return error_set(err, ERR_USAGE, "more than %d programs", ROLES_MAX);
		role = &options->roles[options->count++];
		read_role(words, line, role);
		role->base = role->name;
		role->replica = replica++;
		if (role->replicas)
			role->name = text_format("%s.%d", role->base, role->replica);
		if (!role->name)
			return error_memory(err, "the roles");
	} while (replica < role->replicas);
	return 0;
}

/* Add the line of the next role, which begins with the words in before. *rest moves behind the
 * separator; it becomes NULL if there is none. */
static int add_line(struct role_options *options, const char *const *before, char ***rest,
		    struct error *err)
{
	static char colon[] = ":";
	const char *separator = options->separator ? options->separator : colon;
	char **from = *rest, **line, ***lines;
	size_t count = 0, size = 0;

	while (from[count] && strcmp(from[count], separator) != 0)
		count++;
	line = calloc(count + 4, sizeof *line);
	lines = line ? realloc(options->lines, (options->line_count + 1) * sizeof *lines) : NULL;
	if (!lines) {
		free(line);
		return error_memory(err, "the roles");
	}
	options->lines = lines;
	lines[options->line_count++] = line;
	for (; *before; before++)
		line[size++] = (char *)(uintptr_t)*before;
	for (size_t i = 0; i < count; i++)
		line[size++] = strcmp(from[i], "\\:") ? from[i] : colon;
	*rest = from[count] ? from + count + 1 : NULL;
	return 0;
}

int role_options_read(struct role_options *options, char **rest, struct error *err)
{
	const char *before[] = {"berth run", "--role", NULL, NULL};
	int rc = options->ray ? ray_expand(options, &rest, err) : 0;

	before[2] = options->first;
	if (!rc)
		rc = add_line(options, before, &rest, err);
	before[1] = NULL;
	while (!rc && rest) {
		if (!*rest)
			return error_set(err, ERR_USAGE,
					 "no program follows the last '%s', which separates the "
					 "programs of a job",
					 options->separator ? options->separator : ":");
		rc = add_line(options, before, &rest, err);
	}
	options->roles = rc ? NULL : calloc(ROLES_MAX, sizeof *options->roles);
	if (!rc && !options->roles)
		rc = error_memory(err, "the roles");
	for (size_t i = 0; !rc && i < options->line_count; i++)
		rc = add_roles(options, options->lines[i], err);
	if (!rc)
		options->roles[0].ready.staged = options->ray;
	return rc ? rc : roles_check(options->roles, options->count, err);
}

void role_options_free(struct role_options *options)
{
	for (size_t i = 0; i < options->count; i++) {
		struct role *role = &options->roles[i];

		free(role->env);
		free(role->ready.place);
		container_free(&role->container);
		if (role->replicas)
			free((char *)(uintptr_t)role->name);
		if (role->on_first)
			free((char *)(uintptr_t)role->on);
	}
	for (size_t i = 0; i < options->line_count; i++)
		free(options->lines[i]);
	free(options->roles);
	free(options->lines);
	free(options->words);
	for (size_t i = 0; i < ROLE_RAY_VARIABLES; i++)
		free(options->variables[i]);
}

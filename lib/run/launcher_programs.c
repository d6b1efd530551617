/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs that start ranks of their own. Without this, berth run -n 2 -- torchrun train.py would
 * be two trainings that know nothing of each other. Their options come from scripts for one node:
 * with berth run --per-node in front, all nodes get the same --node_rank=0, and wait forever. */
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "launch/launcher.h"
#include "run/run.h"

static const struct launcher_program {
	/* The program's name, or that of a module for python -m; verb: its first argument, if only
	 * that one starts ranks. */
	const char *name, *verb;
	enum { PER_NODE, ASKED, REFUSED } kind; /* ASKED: see ask_launcher.c, which knows it as */
	const char *asked;
} launchers[] = {
	{"torchrun", NULL, PER_NODE, NULL},
	{"torch.distributed.run", NULL, PER_NODE, NULL},
	{"torch.distributed.launch", NULL, PER_NODE, NULL},
	{"accelerate", "launch", ASKED, "accelerate"},
	{"accelerate-launch", NULL, ASKED, "accelerate"},
	{"accelerate.commands.launch", NULL, ASKED, "accelerate"},
	{"deepspeed", NULL, ASKED, "deepspeed"},
	{"deepspeed.launcher.runner", NULL, ASKED, "deepspeed"},
	{"mpirun", NULL, REFUSED, NULL},
	{"mpiexec", NULL, REFUSED, NULL},
	{"prterun", NULL, REFUSED, NULL},
	{"srun", NULL, REFUSED, NULL},
};

/* The argument with the program's name: argv[0], or the module after python's -m. */
static size_t name_index(const char *const *argv)
{
	if (strncmp(basename(argv[0]), "python", 6))
		return 0;
	for (size_t i = 1; argv[i] && argv[i][0] == '-'; i++) {
		if (!strcmp(argv[i], "-m") && argv[i + 1])
			return i + 1;
		if ((!strcmp(argv[i], "-W") || !strcmp(argv[i], "-X")) && argv[i + 1])
			i++;
	}
	return 0;
}

/* NULL: argv is no launcher. *first: the index of its first option. */
static const struct launcher_program *find_program(const char *const *argv, size_t *first)
{
	size_t index = name_index(argv);
	const char *name = basename(argv[index]), *verb = argv[index + 1];

	for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
		if (!strcmp(launchers[i].name, name) &&
		    (!launchers[i].verb || (verb && !strcmp(launchers[i].verb, verb)))) {
			*first = index + (launchers[i].verb ? 2 : 1);
			return &launchers[i];
		}
	return NULL;
}

/* ---- options that cannot be right on all nodes ---- */

/* "--node_rank=0" is node-rank. *value: what follows '=', or NULL. */
static bool is_option(const char *word, const char *name, const char **value)
{
	size_t dashes = strspn(word, "-");

	if (!dashes || dashes > 2)
		return false;
	for (word += dashes; *name; word++, name++)
		if (*word != *name && (*word != '_' || *name != '-'))
			return false;
	*value = *word == '=' ? word + 1 : NULL;
	return !*word || *word == '=';
}

/* On the machine that resolves it: "localhost:29500", or a node's own name in Debian's /etc/hosts,
 * which images copy to other nodes. */
static bool leads_here(const char *endpoint)
{
	const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
	struct addrinfo *list;
	char host[256];

	snprintf(host, sizeof host, "%.*s", (int)strcspn(endpoint, ":"), endpoint);
	if (getaddrinfo(host, NULL, &hints, &list))
		return !strcmp(host, "localhost") || !strncmp(endpoint, "[::1]", 5);
	in_addr_t address =
		((const struct sockaddr_in *)(const void *)list->ai_addr)->sin_addr.s_addr;

	freeaddrinfo(list);
	return ntohl(address) >> 24 == IN_LOOPBACKNET;
}

/* "2" or "1:4" is another number of nodes. */
static bool excludes(const char *nnodes, size_t count)
{
	unsigned long min, max;
	int read = sscanf(nnodes, "%lu:%lu", &min, &max);

	return read > 0 && (count < min || count > (read > 1 ? max : min));
}

enum { FLAG = 1, PLACE = 2, NODE_RANK = 4, NODES = 8, HOST = 16, RANKS = 32, VALUE = 64 };

/* FLAG: has no value. PLACE: berth sets it, or it means nothing without those that berth sets. */
struct kept_option {
	const char *name;
	unsigned kind;
};

static const struct kept_option torchrun_options[] = {
	{"nnodes", PLACE | NODES},
	{"node-rank", PLACE | NODE_RANK},
	{"master-addr", PLACE | HOST},
	{"master-port", PLACE},
	{"rdzv-endpoint", PLACE | HOST},
	{"rdzv-backend", PLACE},
	{"rdzv-id", PLACE},
	{"rdzv-conf", PLACE},
	{"local-addr", PLACE},
	{"standalone", PLACE | NODES | FLAG},
	{"m", FLAG},
	{"module", FLAG},
	{"no-python", FLAG},
	{"run-path", FLAG},
	{"use-env", FLAG},
	{0},
};

static const struct kept_option accelerate_options[] = {
	{"num-machines", NODES},
	{"machine-rank", NODE_RANK},
	{"main-process-ip", HOST},
	{0},
};

/* The usual ones of mpirun and srun. */
static const struct kept_option mpi_options[] = {
	{"n", RANKS},
	{"np", RANKS},
	{"ntasks", RANKS},
	{"N", VALUE},
	{"nodes", VALUE},
	{"ppn", VALUE},
	{"npernode", VALUE},
	{"map-by", VALUE},
	{"bind-to", VALUE},
	{"rank-by", VALUE},
	{"x", VALUE},
	{"host", VALUE},
	{"H", VALUE},
	{"hostfile", VALUE},
	{"f", VALUE},
	{"machinefile", VALUE},
	{"ntasks-per-node", VALUE},
	{"cpus-per-task", VALUE},
	{"c", VALUE},
	{"mpi", VALUE},
	{"oversubscribe", FLAG},
	{"allow-run-as-root", FLAG},
	{"exclusive", FLAG},
	{"overlap", FLAG},
	{0},
};

/* *value: NULL for a flag. *words: how many words option and value are. */
static unsigned option_kind(const struct kept_option *options, const char *const *argv,
			    const char **value, size_t *words)
{
	while (options->name && !is_option(argv[0], options->name, value))
		options++;
	bool attached = strchr(argv[0], '=') ||
			(!options->name && argv[0][1] != '-' && argv[0][2]); /* -t3 */

	*words = options->kind & FLAG || attached || !argv[1] ? 1 : 2;
	if (*words == 2)
		*value = argv[1];
	return options->kind;
}

static bool is_wrong(unsigned kind, const char *value, size_t nodes)
{
	return kind & NODE_RANK || (kind & NODES && (!value || excludes(value, nodes))) ||
	       (kind & HOST && value && leads_here(value));
}

struct run_asked run_asked(const struct plan_request *plan, const char *const *argv)
{
	struct run_asked asked = {0};
	const struct launcher_program *program = find_program(argv, &asked.first);

	/* One process, or one per node, is what the user asked for. */
	if (program && !plan->per_node && plan->ranks != 1)
		asked.name = program->asked;
	if (name_index(argv))
		asked.module = name_index(argv) - 1;
	return asked;
}

/* mpirun -np 4 ./solver as "-n 4", and where ./solver begins; false after an unknown option. */
static bool read_line(const char *const *rest, char ranks[16], const char *const **program)
{
	size_t words;

	for (; *rest && **rest == '-'; rest += words) {
		bool joined = !strncmp(*rest, "-n", 2) && strspn(*rest + 2, "0123456789") > 0;
		const char *value = joined ? *rest + 2 : NULL;
		unsigned kind = RANKS;

		if (joined)
			words = 1;
		else
			kind = option_kind(mpi_options, rest, &value, &words);
		if (!kind)
			return false;
		if (kind & RANKS && value)
			snprintf(ranks, 16, "%s", value);
	}
	*program = rest;
	return *rest != NULL;
}

int run_check_launchers(struct plan_request *plan, const char *const *argv, struct error *err)
{
	size_t first;
	const struct launcher_program *program = find_program(argv, &first);
	const char *name = program ? program->name : NULL;
	const char *const *rest;
	char ranks[16] = "N", *line = NULL;
	int rc;

	if (!program || program->kind == ASKED || plan->per_node || plan->ranks == 1)
		return 0;
	if (program->kind == PER_NODE) {
		plan->per_node = true;
		log_user(LOG_NOTE,
			 "%s starts ranks of its own, so berth starts one per node, as with "
			 "--per-node",
			 name);
		return 0;
	}
	if (plan->ranks)
		snprintf(ranks, sizeof ranks, "%d", plan->ranks);
	if (read_line(argv + first, ranks, &rest))
		line = launcher_command_line((char *const *)(uintptr_t)rest);
	rc = error_set(err, ERR_USAGE,
		       "%s starts ranks of its own, and each rank would run one: use berth run -n "
		       "%s -- %s, or %s -n %s berth exec -- %s. Add -n 1 for a single %s, or "
		       "--per-node for one per node",
		       name, ranks, line ? line : "PROGRAM", name, ranks, line ? line : "PROGRAM",
		       name);
	free(line);
	return rc;
}

int run_check_kept_options(struct run_setup *setup, struct error *err)
{
	const char *const *argv = setup->request->program;
	size_t nodes = setup->alloc.node_count, first, count = 0, kept, i, words;
	const struct launcher_program *program = find_program(argv, &first);
	bool torchrun = program && program->kind == PER_NODE;
	char wrong[100] = "", replaced[400] = "";

	if (!setup->request->place.plan.per_node || nodes < 2 || !program ||
	    (!torchrun && (!program->asked || strcmp(program->asked, "accelerate") != 0)))
		return 0;
	while (argv[count])
		count++;
	setup->kept_argv = calloc(count + 1, sizeof *setup->kept_argv);
	if (!setup->kept_argv)
		return error_memory(err, "the program's arguments");
	memcpy(setup->kept_argv, argv, first * sizeof *argv);
	kept = first;
	/* torchrun's end where its script begins. Of accelerate's many, only these are known. */
	for (i = first; argv[i] && (!torchrun || argv[i][0] == '-'); i += words) {
		const char *value = NULL;
		unsigned kind = option_kind(torchrun ? torchrun_options : accelerate_options,
					    argv + i, &value, &words);
		char text[100];

		if (!torchrun && !kind)
			words = 1;
		snprintf(text, sizeof text, "%s%s%s", argv[i], words == 2 ? " " : "",
			 words == 2 ? value : "");
		if (!wrong[0] && is_wrong(kind, value, nodes))
			snprintf(wrong, sizeof wrong, "%s", text);
		if (kind & PLACE)
			text_append(replaced, sizeof replaced, " %s", text);
		else
			for (size_t word = 0; word < words; word++)
				setup->kept_argv[kept++] = argv[i + word];
	}
	memcpy(setup->kept_argv + kept, argv + i, (count - i) * sizeof *argv);
	if (wrong[0] && !torchrun)
		return error_set(err, ERR_USAGE,
				 "%s cannot be right on %zu nodes that run the same line: omit "
				 "--per-node, and berth run gives accelerate's ranks their places",
				 wrong, nodes);
	if (wrong[0]) {
		log_user(LOG_WARNING,
			 "%s cannot be right on %zu nodes that run the same line, so berth's own "
			 "rendezvous replaces it: omit%s",
			 wrong, nodes, replaced);
		return 0;
	}
	free(setup->kept_argv);
	setup->kept_argv = NULL;
	return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Captures of real machines in the directory BERTH_TEST_TOPO: checks every plan of 1 to 64 ranks,
 * and compares with the nearest NICs and fair shares in best.tsv and with mpibind's plans. */
#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "invariants.h"

#define MAX_FIELDS 16
#define MAX_TABLE (8 << 20)

static const char *dir;

/* ---- the folder ---- */

static int load(const char *file, struct inventory *out, struct error *err)
{
	char path[PATH_MAX];
	struct inventory_source source = {.topology_file = path, .no_network = true};

	snprintf(path, sizeof path, "%s/%s", dir, file);
	return inventory_discover(&source, out, err);
}

struct row {
	char *field[MAX_FIELDS];
	int line;
};

struct rows {
	char *text;
	struct row *row;
	size_t count;
};

/* A table of tab-separated fields without its heading. */
static void read_table(const char *name, struct rows *out)
{
	char path[PATH_MAX], *rest, *line;
	struct error err = {0};
	size_t size, room = 0;

	memset(out, 0, sizeof *out);
	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (file_read(path, MAX_TABLE, &out->text, &size, &err))
		fail_msg("%s", err.text);
	rest = out->text;
	for (int number = 1; (line = strsep(&rest, "\n")); number++) {
		if (number == 1 || !*line)
			continue;
		if (out->count == room) {
			room = room ? 2 * room : 64;
			out->row = realloc(out->row, room * sizeof *out->row);
			assert_non_null(out->row);
		}
		struct row *row = &out->row[out->count++];

		memset(row, 0, sizeof *row);
		row->line = number;
		for (int f = 0; f < MAX_FIELDS; f++)
			row->field[f] = line ? strsep(&line, "\t") : NULL;
	}
}

static void free_table(struct rows *rows)
{
	free(rows->row);
	free(rows->text);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* List all XML files; the caller frees the list. */
static size_t list_files(char ***out)
{
	DIR *stream = opendir(dir);
	char **names = NULL;
	size_t count = 0;

	if (!stream)
		fail_msg("BERTH_TEST_TOPO=%s cannot be read", dir);
	for (struct dirent *entry; (entry = readdir(stream));) {
		size_t length = strlen(entry->d_name);

		if (length < 5 || strcmp(entry->d_name + length - 4, ".xml"))
			continue;
		names = realloc(names, (count + 1) * sizeof *names);
		assert_non_null(names);
		names[count++] = strdup(entry->d_name);
	}
	closedir(stream);
	qsort(names, count, sizeof *names, by_name);
	*out = names;
	return count;
}

/* ---- every file, every N ---- */

static void test_every_n(void **state)
{
	char **names;
	size_t count = list_files(&names), loaded = 0;
	int violations = 0;

	for (size_t f = 0; f < count; f++) {
		struct inventory inventory = {0};
		struct error err = {0};
		int rc = load(names[f], &inventory, &err);

		if (rc) {
			if (rc != -ERR_DATA) {
				fprintf(stderr, "%s: %s\n", names[f], err.text);
				violations++;
			}
			continue;
		}
		loaded++;
		for (int n = 1; n <= 64; n++) {
			struct plan_request pairs = {.gpus_per_rank = 2};
			struct plan_request plain = {.ranks = n},
					    all = {.ranks = n, .all_cores = 1};

			violations += invariants_plan(names[f], &inventory, &plain, n);
			violations += invariants_plan(names[f], &inventory, &all, n);
			if (2 * n <= (int)inventory.gpu_count)
				violations += invariants_plan(names[f], &inventory, &pairs, n);
		}
		inventory_free(&inventory);
	}
	printf("%zu of %zu files are hwloc's and were planned for 1 to 64 ranks\n", loaded, count);
	for (size_t f = 0; f < count; f++)
		free(names[f]);
	free(names);
	assert_true(loaded > 0);
	assert_int_equal(violations, 0);
}

/* ---- best.tsv ---- */

enum {
	B_FILE,
	B_GPU,
	B_OS,
	B_PCI,
	B_NUMA,
	B_PUS,
	B_PATH,
	B_BEST,
	B_ASSIGNED,
	B_PATH_UP,
	B_BEST_UP,
	B_SHARE
};

/* Is one of the names "mlx5_0/ib0,mlx5_1/ib1" this NIC's? */
static bool listed(const char *list, const struct plan_nic *nic)
{
	char copy[512], *rest = copy, *item, *name;

	snprintf(copy, sizeof copy, "%s", list);
	while ((item = strsep(&rest, ",")))
		while ((name = strsep(&item, "/")))
			if (*name && (!strcmp(name, nic->net) || !strcmp(name, nic->rdma)))
				return true;
	return false;
}

static size_t items(const char *list)
{
	size_t count = strcmp(list, "-") && *list;

	for (const char *c = list; *c; c++)
		count += *c == ',';
	return count;
}

/* Ports up: exactly the assigned ones. Ports down: the assigned ones are listed after the nearest
 * that are up. */
static const char *compare_nics(const struct row *row, const struct plan_rank *rank)
{
	size_t down = 0;
	bool up_is_nearest = !strcmp(row->field[B_BEST], row->field[B_BEST_UP]);

	for (size_t n = 0; n < rank->nic_count; n++) {
		const struct plan_nic *nic = &rank->nics[n];

		if (nic->state == NIC_STATE_DOWN) {
			down++;
			if (!listed(row->field[B_ASSIGNED], nic))
				return "a port that is down and not the nearest";
			if (strcmp(path_class_name(nic->path), row->field[B_PATH]))
				return "the path class of a port that is down";
		} else {
			if (!listed(up_is_nearest ? row->field[B_ASSIGNED] : row->field[B_BEST_UP],
				    nic))
				return "not the nearest NIC";
			if (strcmp(row->field[B_PATH_UP], "UNK") &&
			    strcmp(path_class_name(nic->path), row->field[B_PATH_UP]))
				return "the path class";
		}
	}
	if (up_is_nearest && rank->nic_count != items(row->field[B_ASSIGNED]))
		return "the number of NICs";
	return !up_is_nearest && !down ? "the nearest NIC is not mentioned" : NULL;
}

static int check_gpu(const struct row *row, const struct plan_node *node)
{
	struct idset *cpus = idset_new(), *share = NULL;
	const char *file = row->field[B_FILE], *fault;
	struct error err = {0};
	int violations = 0, seen = 0;

	/* Partitions of one PCI function share one row: together they have its share of the cores.
	 */
	for (size_t r = 0; r < node->rank_count; r++) {
		const struct plan_rank *rank = &node->ranks[r];

		if (strcmp(rank->gpus[0].pci, row->field[B_PCI]))
			continue;
		seen++;
		idset_unite(cpus, rank->cpus_os);
		fault = compare_nics(row, rank);
		if (fault) {
			fprintf(stderr, "%s: N=%zu rank %zu (best.tsv:%d): %s\n", file,
				node->rank_count, r, row->line, fault);
			violations++;
		}
	}
	if (!seen) {
		fprintf(stderr, "%s: N=%zu: no rank has GPU %s (best.tsv:%d)\n", file,
			node->rank_count, row->field[B_PCI], row->line);
		violations++;
	}
	if (strcmp(row->field[B_SHARE], "-")) {
		if (idset_parse(row->field[B_SHARE], &share, &err))
			fail_msg("best.tsv:%d: %s", row->line, err.text);
		if (!idset_contains(cpus, share)) {
			char *has = idset_format(cpus);

			fprintf(stderr, "%s: N=%zu GPU %s (best.tsv:%d): has %s, its share is %s\n",
				file, node->rank_count, row->field[B_PCI], row->line, has,
				row->field[B_SHARE]);
			free(has);
			violations++;
		}
	}
	idset_free(cpus);
	idset_free(share);
	return violations;
}

static void test_best(void **state)
{
	struct inventory inventory = {0};
	struct plan_node node = {0};
	struct error err = {0};
	struct rows rows;
	int violations = 0;

	read_table("best.tsv", &rows);
	for (size_t i = 0; i < rows.count; i++) {
		const struct row *row = &rows.row[i];

		if (!i || strcmp(row->field[B_FILE], rows.row[i - 1].field[B_FILE])) {
			struct plan_request request = {0};

			plan_node_free(&node);
			inventory_free(&inventory);
			if (load(row->field[B_FILE], &inventory, &err))
				fail_msg("%s", err.text);
			if (plan_map_node(&inventory, &request, 0, (int)inventory.gpu_count, &node,
					  &err))
				fail_msg("%s: %s", row->field[B_FILE], err.text);
			for (size_t r = 0; r < node.rank_count; r++)
				if (node.ranks[r].gpus[0].index != (int)r) {
					fprintf(stderr, "%s: rank %zu has GPU %d\n",
						row->field[B_FILE], r, node.ranks[r].gpus[0].index);
					violations++;
				}
		}
		violations += check_gpu(row, &node);
	}
	plan_node_free(&node);
	inventory_free(&inventory);
	printf("%zu GPUs of best.tsv\n", rows.count);
	free_table(&rows);
	assert_int_equal(violations, 0);
}

/* ---- mpibind ---- */

struct score {
	int local;   /* ranks that are NUMA-local to all of their GPUs */
	size_t gpus; /* PCI functions used */
};

static size_t count_used(const struct inventory *inventory, const bool *used)
{
	size_t count = 0;

	for (size_t g = 0; g < inventory->gpu_count; g++) {
		bool first = used[g];

		for (size_t h = 0; h < g && first; h++)
			first = !used[h] || strcmp(inventory->gpus[h].pci, inventory->gpus[g].pci);
		count += first;
	}
	return count;
}

/* Claim a core near one of the used GPUs that no earlier task has claimed. mpibind may put two
 * tasks on the SMT siblings of one core (12 on the 6 cores of a NUMA node: corona-nps4 with 48,
 * lyra-mi50 with 8). berth never does this, so such tasks count once per core. */
static bool claim_core(const struct inventory *inventory, const struct idset *cpus,
		       const bool *mine, bool *claimed)
{
	for (size_t c = 0; c < inventory->core_count; c++) {
		const struct inventory_core *core = &inventory->cores[c];

		if (claimed[c] || !idset_intersects(core->cpus_os, cpus))
			continue;
		for (size_t g = 0; g < inventory->gpu_count; g++)
			if (mine[g] &&
			    (!inventory->gpus[g].local_known ||
			     idset_intersects(core->cpus_os, inventory->gpus[g].cpus_os)))
				return claimed[c] = true;
	}
	return false;
}

/* Score one task of mpibind; its GPUs are PCI addresses or indices in PCI order. */
static void score_task(const struct inventory *inventory, const char *cpus_text,
		       const char *gpus_text, bool *used, bool *claimed, struct score *score)
{
	bool *mine = calloc(inventory->gpu_count + 1, sizeof *mine);
	char copy[1024], *rest = copy, *item;
	struct idset *cpus = NULL;
	bool local = true, some = false;

	if (!strcmp(cpus_text, "-") || !strcmp(gpus_text, "-") ||
	    idset_parse(cpus_text, &cpus, NULL)) {
		free(mine);
		return;
	}
	snprintf(copy, sizeof copy, "%s", gpus_text);
	while ((item = strsep(&rest, ",")))
		for (size_t g = 0; g < inventory->gpu_count; g++) {
			bool named = strchr(item, ':') ? !strcmp(inventory->gpus[g].pci, item)
						       : atoi(item) == (int)g;

			if (!named)
				continue;
			used[g] = mine[g] = some = true;
			local = local && cpus_local(inventory, &inventory->gpus[g], cpus);
		}
	score->local += some && local && claim_core(inventory, cpus, mine, claimed);
	free(mine);
	idset_free(cpus);
}

static struct score score_plan(const struct inventory *inventory, const struct plan_node *node)
{
	bool *used = calloc(inventory->gpu_count + 1, sizeof *used);
	struct score score = {0};

	for (size_t r = 0; r < node->rank_count; r++) {
		const struct plan_rank *rank = &node->ranks[r];
		bool local = rank->gpu_count > 0;

		for (size_t k = 0; k < rank->gpu_count; k++) {
			const struct inventory_gpu *gpu = &inventory->gpus[rank->gpus[k].index];

			used[rank->gpus[k].index] = true;
			local = local && cpus_local(inventory, gpu, rank->cpus_os);
		}
		score.local += local;
	}
	score.gpus = count_used(inventory, used);
	free(used);
	return score;
}

/* mpibind shares out all GPUs to the tasks, several per task if there are few tasks.
 * --gpus-per-rank does the same; without it a rank has one GPU, and at most min(N, GPUs) are used.
 */
static int compare_plans(const struct inventory *inventory, const char *file, int line, int n,
			 struct score theirs)
{
	int violations = 0, gpus = (int)inventory->gpu_count;

	for (int several = 0; several < 2; several++) {
		struct plan_request request = {.gpus_per_rank = several ? gpus / n : 0};
		struct plan_node node = {0};
		struct error err = {0};
		struct score ours;
		size_t reachable = theirs.gpus;

		if (several && gpus <= n)
			break;
		if (plan_map_node(inventory, &request, 0, n, &node, &err))
			fail_msg("%s: %s", file, err.text);
		ours = score_plan(inventory, &node);
		if (!several && reachable > (size_t)n)
			reachable = (size_t)n;
		if (several && gpus % n && reachable > (size_t)(gpus / n * n))
			reachable = (size_t)(gpus / n * n);
		if (ours.local < theirs.local || ours.gpus < reachable) {
			fprintf(stderr,
				"%s: N=%d --gpus-per-rank %d (line %d): %d ranks local and %zu "
				"GPUs, "
				"mpibind has %d and %zu\n",
				file, n, several ? gpus / n : 1, line, ours.local, ours.gpus,
				theirs.local, theirs.gpus);
			violations++;
		}
		plan_node_free(&node);
	}
	return violations;
}

/* The columns of the two tables that this test uses. */
struct columns {
	int file, ntasks, options, cpus, gpus;
};

static int compare_table(const char *name, const struct columns *columns)
{
	struct inventory inventory = {0};
	struct error err = {0};
	struct rows rows;
	const char *loaded = "";
	int violations = 0, compared = 0;

	read_table(name, &rows);
	for (size_t i = 0; i < rows.count;) {
		const struct row *row = &rows.row[i];
		const char *file = row->field[columns->file];
		const char *options = row->field[columns->options];
		int n = atoi(row->field[columns->ntasks]), first = row->line;
		bool wanted = strstr(options, "gpu_optim=1") && !strstr(options, "restrict_");
		struct score theirs = {0};
		bool *used, *claimed;

		if (wanted && strcmp(loaded, file)) {
			inventory_free(&inventory);
			if (load(file, &inventory, &err))
				fail_msg("%s", err.text);
			loaded = file;
		}
		used = calloc(inventory.gpu_count + 1, sizeof *used);
		claimed = calloc(inventory.core_count + 1, sizeof *claimed);
		for (int task = 0; task < n && i < rows.count; task++, i++)
			if (wanted)
				score_task(&inventory, rows.row[i].field[columns->cpus],
					   rows.row[i].field[columns->gpus], used, claimed,
					   &theirs);
		if (wanted) {
			theirs.gpus = count_used(&inventory, used);
			violations += compare_plans(&inventory, file, first, n, theirs);
			compared++;
		}
		free(used);
		free(claimed);
	}
	printf("%d mappings of %s\n", compared, name);
	inventory_free(&inventory);
	free_table(&rows);
	assert_true(compared > 0);
	return violations;
}

static void test_mpibind(void **state)
{
	static const struct columns computed = {0, 1, 2, 4, 5}, expected = {1, 2, 3, 5, 6};
	int violations = compare_table("mpibind-computed.tsv", &computed);

	violations += compare_table("mpibind-expected.tsv", &expected);
	assert_int_equal(violations, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_n),
		cmocka_unit_test(test_best),
		cmocka_unit_test(test_mpibind),
	};

	dir = getenv("BERTH_TEST_TOPO");
	if (!dir || !*dir) {
		printf("skipped: BERTH_TEST_TOPO is not a directory of captured topologies\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}

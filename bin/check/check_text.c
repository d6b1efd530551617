/* SPDX-License-Identifier: BSD-3-Clause */
#include "check/check_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "hostlist/hostlist.h"
#include "table.h"

/* One row: a result of one node or of several. */
struct finding {
	const char *probe, *seen, *fix;
	const char *kind; /* "FAULT", "note", "ok", "skipped" */
	size_t order;	  /* in order of discovery */
	const char **nodes;
	size_t node_count;
};

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static const char *kind_of(const json_t *probe)
{
	const char *result = text_of(probe, "result");

	if (!strcmp(result, "fault"))
		return "FAULT";
	return json_is_true(json_object_get(probe, "note")) ? "note" : result;
}

static int severity(const char *kind)
{
	return !strcmp(kind, "FAULT") ? 0 : !strcmp(kind, "note") ? 1 : !strcmp(kind, "ok") ? 2 : 3;
}

static int compare(const void *a, const void *b)
{
	const struct finding *one = a, *two = b;
	int by = severity(one->kind) - severity(two->kind);

	return by ? by : one->order < two->order ? -1 : one->order > two->order;
}

static bool is_same_finding(const struct finding *finding, const json_t *probe)
{
	return !strcmp(finding->probe, text_of(probe, "name")) &&
	       !strcmp(finding->kind, kind_of(probe)) &&
	       !strcmp(finding->seen, text_of(probe, "seen")) &&
	       !strcmp(finding->fix, text_of(probe, "fix"));
}

struct list {
	struct finding *finding;
	size_t count, room, nodes;
	bool short_of_memory;
};

static struct finding *find_finding(struct list *list, const json_t *probe)
{
	for (size_t i = 0; i < list->count; i++)
		if (is_same_finding(&list->finding[i], probe))
			return &list->finding[i];
	if (!array_reserve(&list->finding, list->count, &list->room, sizeof *list->finding))
		return NULL;
	struct finding *finding = &list->finding[list->count];

	*finding = (struct finding){.probe = text_of(probe, "name"),
				    .seen = text_of(probe, "seen"),
				    .fix = text_of(probe, "fix"),
				    .kind = kind_of(probe),
				    .order = list->count,
				    .nodes = calloc(list->nodes, sizeof *finding->nodes)};
	if (!finding->nodes)
		return NULL;
	list->count++;
	return finding;
}

static void collect(const json_t *nodes, struct list *list)
{
	json_t *node, *probe;
	size_t i, j;

	list->nodes = json_array_size(nodes);
	json_array_foreach(nodes, i, node)
		json_array_foreach(json_object_get(node, "probes"), j, probe)
	{
		struct finding *finding = find_finding(list, probe);

		/* A node may report it twice (two GPUs): show it once. */
		if (!finding)
			list->short_of_memory = true;
		else if (!finding->node_count ||
			 strcmp(finding->nodes[finding->node_count - 1], text_of(node, "node")))
			finding->nodes[finding->node_count++] = text_of(node, "node");
	}
}

void check_print(const json_t *check, const struct env *env)
{
	struct list list = {0};
	struct table table = {0};
	struct paint paint;

	paint_init(env, &paint);
	collect(json_object_get(check, "nodes"), &list);
	if (list.count)
		qsort(list.finding, list.count, sizeof *list.finding, compare);
	TABLE_ROW(&table, "RESULT", "PROBE", "NODE", "FINDING AND FIX");
	for (size_t i = 0; i < list.count; i++) {
		struct finding *finding = &list.finding[i];
		char *names = finding->node_count == list.nodes && list.nodes > 1
				      ? strdup("all")
				      : hostlist_compress(finding->nodes, finding->node_count);
		char *text = NULL;

		size_t seen = strlen(finding->seen);

		/* Some findings are errors that end with a full stop. */
		seen -= seen && finding->seen[seen - 1] == '.';
		text = text_format("%.*s%s%s", (int)seen, finding->seen,
				   *finding->fix ? ". Fix: " : "", finding->fix);
		TABLE_ROW(&table, finding->kind, finding->probe, names ? names : "?",
			  text ? text : finding->seen);
		free(text);
		free(names);
		free(finding->nodes);
	}
	table_print(&table, &paint, 0);
	if (list.short_of_memory)
		printf("(out of memory: rows are missing)\n");
	free(list.finding);
}

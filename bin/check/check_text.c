/* SPDX-License-Identifier: BSD-3-Clause */
#include "check/check_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hostlist/hostlist.h"
#include "show.h"
#include "table.h"

/* One row: what is said of one node or of several. */
struct said {
	const char *probe, *seen, *fix;
	const char *kind; /* "FAULT", "note", "ok", "skipped" */
	size_t order;	  /* as found */
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
	const struct said *one = a, *two = b;
	int by = severity(one->kind) - severity(two->kind);

	return by ? by : one->order < two->order ? -1 : one->order > two->order;
}

static bool same(const struct said *said, const json_t *probe)
{
	return !strcmp(said->probe, text_of(probe, "name")) &&
	       !strcmp(said->kind, kind_of(probe)) && !strcmp(said->seen, text_of(probe, "seen")) &&
	       !strcmp(said->fix, text_of(probe, "fix"));
}

struct list {
	struct said *said;
	size_t count, room, nodes;
	bool short_of_memory;
};

static struct said *find(struct list *list, const json_t *probe)
{
	for (size_t i = 0; i < list->count; i++)
		if (same(&list->said[i], probe))
			return &list->said[i];
	if (list->count == list->room) {
		size_t room = list->room ? 2 * list->room : 64;
		struct said *more = realloc(list->said, room * sizeof *more);

		if (!more)
			return NULL;
		list->said = more;
		list->room = room;
	}
	struct said *said = &list->said[list->count];

	*said = (struct said){.probe = text_of(probe, "name"),
			      .seen = text_of(probe, "seen"),
			      .fix = text_of(probe, "fix"),
			      .kind = kind_of(probe),
			      .order = list->count,
			      .nodes = calloc(list->nodes, sizeof *said->nodes)};
	if (!said->nodes)
		return NULL;
	list->count++;
	return said;
}

static void collect(const json_t *nodes, struct list *list)
{
	json_t *node, *probe;
	size_t i, j;

	list->nodes = json_array_size(nodes);
	json_array_foreach(nodes, i, node)
		json_array_foreach(json_object_get(node, "probes"), j, probe)
	{
		struct said *said = find(list, probe);

		/* A node may have said it twice (two GPUs): once is enough here. */
		if (!said)
			list->short_of_memory = true;
		else if (!said->node_count ||
			 strcmp(said->nodes[said->node_count - 1], text_of(node, "node")))
			said->nodes[said->node_count++] = text_of(node, "node");
	}
}

void check_print(const json_t *check, const struct env *env, FILE *stream)
{
	struct list list = {0};
	struct table *table = table_new();
	struct paint paint;

	paint_choose(stream, env, &paint);
	collect(json_object_get(check, "nodes"), &list);
	if (list.count)
		qsort(list.said, list.count, sizeof *list.said, compare);
	TABLE_ROW(table, "RESULT", "PROBE", "NODE", "SEEN, AND HOW TO FIX IT");
	for (size_t i = 0; i < list.count; i++) {
		struct said *said = &list.said[i];
		char *names = said->node_count == list.nodes && list.nodes > 1
				      ? strdup("all")
				      : hostlist_compress(said->nodes, said->node_count);
		char *words = NULL;

		if (asprintf(&words, "%s%s%s", said->seen, *said->fix ? ". Fix: " : "",
			     said->fix) < 0)
			words = NULL;
		TABLE_ROW(table, said->kind, said->probe, names ? names : "?",
			  words ? words : said->seen);
		free(words);
		free(names);
		free(said->nodes);
	}
	table_print(table, stream, &paint, 0);
	if (list.short_of_memory)
		fprintf(stream, "(memory ran out: there is more)\n");
	table_free(table);
	free(list.said);
}

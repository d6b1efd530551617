/* SPDX-License-Identifier: BSD-3-Clause */
#include "check/check_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "hostlist/hostlist.h"
#include "table.h"

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

/* The findings in order of discovery: {text: {"probe": one of those that say this, "nodes":
 * [name]}}. NULL: memory is out. */
static json_t *collect(const json_t *nodes)
{
	JSON_AUTO out = json_object();
	json_t *node, *probe, *finding, *names;
	size_t i, j;

	json_array_foreach(nodes, i, node)
		json_array_foreach(json_object_get(node, "probes"), j, probe)
	{
		char *text = text_format("%s\n%s\n%s\n%s", kind_of(probe), text_of(probe, "name"),
					 text_of(probe, "seen"), text_of(probe, "fix"));
		bool failed = !text;

		finding = text ? json_object_get(out, text) : NULL;
		if (text && !finding) {
			finding = json_pack("{s:O, s:[]}", "probe", probe, "nodes");
			failed = json_object_set_new(out, text, finding);
		}
		free(text);
		names = failed ? NULL : json_object_get(finding, "nodes");
		/* A node may report it twice (two GPUs): show it once. */
		if (names && json_array_size(names) &&
		    json_equal(json_array_get(names, json_array_size(names) - 1),
			       json_object_get(node, "node")))
			continue;
		if (!names || json_array_append(names, json_object_get(node, "node")))
			return NULL;
	}
	return json_incref(out);
}

static char *names_of(const json_t *nodes)
{
	const char **names = calloc(json_array_size(nodes) + 1, sizeof *names);
	char *out = NULL;

	for (size_t i = 0; names && i < json_array_size(nodes); i++)
		names[i] = json_string_value(json_array_get(nodes, i));
	if (names)
		out = hostlist_compress(names, json_array_size(nodes));
	free(names);
	return out;
}

static void add_row(const json_t *finding, size_t node_count, struct table *table)
{
	const json_t *probe = json_object_get(finding, "probe");
	const json_t *nodes = json_object_get(finding, "nodes");
	const char *seen = text_of(probe, "seen"), *fix = text_of(probe, "fix");
	bool all = json_array_size(nodes) == node_count && node_count > 1;
	char *names = all ? strdup("all") : names_of(nodes);
	size_t length = strlen(seen);
	char *text;

	/* Some findings are errors that end with a full stop. */
	length -= length && seen[length - 1] == '.';
	text = text_format("%.*s%s%s", (int)length, seen, *fix ? ". Fix: " : "", fix);
	TABLE_ROW(table, kind_of(probe), text_of(probe, "name"), names ? names : "?",
		  text ? text : seen);
	free(text);
	free(names);
}

void check_print(const json_t *check, const struct env *env)
{
	static const char *const kinds[] = {"FAULT", "note", "ok", "skipped"};
	const json_t *nodes = json_object_get(check, "nodes");
	JSON_AUTO findings = collect(nodes);
	struct table table = {0};
	struct paint paint;
	const char *text;
	json_t *finding;

	paint_init(env, &paint);
	TABLE_ROW(&table, "RESULT", "PROBE", "NODE", "FINDING AND FIX");
	for (size_t k = 0; k < 4; k++)
		json_object_foreach(findings, text, finding)
		{
			if (!strcmp(kind_of(json_object_get(finding, "probe")), kinds[k]))
				add_row(finding, json_array_size(nodes), &table);
		}
	if (!findings)
		table.short_of_memory = true;
	table_print(&table, &paint, 0);
}

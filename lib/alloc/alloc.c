/* SPDX-License-Identifier: BSD-3-Clause */
/* The first source that is present decides. If it cannot be read, that is an error: the next one,
 * at last this machine alone, would not be what the user asked for. */
#include "alloc/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json_fields.h"
#include "base/log.h"
#include "hostlist/hostlist.h"

/* In order of precedence: the user's own settings, then a scheduler, then this machine alone. To
 * add a scheduler, add a row here and a file. */
static const struct alloc_source *const sources[] = {
	&alloc_source_hand,  &alloc_source_hosts,
	&alloc_source_slurm, /* before PBS: Slurm's wrappers set PBS_*, too */
	&alloc_source_pbs,   &alloc_source_openpai,
	&alloc_source_local,
};

const char *alloc_from_name(int from)
{
	static const char *const names[] = {"nowhere", "local",	  "hand",  "hosts",   "slurm",
					    "pbs",     "openpai", "berth", "launcher"};

	return names[from];
}

int alloc_read_from(const struct alloc_source *source, const struct env *env,
		    const struct alloc_request *request, struct alloc *out, struct error *err)
{
	struct alloc made = {.source = source->from, .this_node = -1};
	int rc = source->read(env, request, &made, err);

	/* This machine's own name is not passed to another program. */
	for (size_t i = 0; !rc && source != &alloc_source_local && i < made.node_count; i++)
		if ((rc = hostlist_check_name(made.nodes[i].name, strlen(made.nodes[i].name), err)))
			error_prefix(err, "node %zu", i);
	if (rc)
		alloc_free(&made);
	else
		*out = made;
	return rc;
}

int alloc_read(const struct env *env, const struct alloc_request *request, struct alloc *out,
	       struct error *err)
{
	static const struct alloc_request nothing;

	if (!request)
		request = &nothing;
	for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
		if (!sources[i]->present(env, request))
			continue;
		int rc = alloc_read_from(sources[i], env, request, out, err);

		if (!rc)
			log_info(LOG_ALLOC,
				 "source %s: %s; job %s, %zu nodes from %s, slots %d, "
				 "GPUs %d",
				 alloc_from_name(out->source), out->why, out->job_id,
				 out->node_count, out->nodes[0].name, out->nodes[0].slots,
				 out->nodes[0].gpus);
		return rc ? error_prefix(err, "allocation (%s)", alloc_from_name(sources[i]->from))
			  : 0;
	}
	return error_set(err, ERR_INTERNAL, "no allocation source applies");
}

const char *alloc_env(const struct env *env, const char *name)
{
	const char *value = env_get(env, name);

	return value && *value ? value : NULL;
}

int alloc_set_nodes(struct alloc *alloc, struct hosts *hosts, bool slots_given, struct error *err)
{
	alloc->nodes = calloc(hosts->count, sizeof *alloc->nodes);
	if (!alloc->nodes)
		return error_memory(err, "the allocation");
	alloc->node_count = hosts->count;
	for (size_t i = 0; i < hosts->count; i++) {
		alloc->nodes[i] = (struct alloc_node){.name = hosts->names[i],
						      .slots = slots_given ? hosts->slots[i] : 0,
						      .gpus = -1};
		/* The name has moved to the allocation. */
		hosts->names[i] = NULL;
	}
	return 0;
}

void alloc_set_end_reason(struct alloc *alloc, const char *format, ...)
{
	va_list ap;

	free(alloc->end_reason);
	va_start(ap, format);
	if (vasprintf(&alloc->end_reason, format, ap) < 0)
		alloc->end_reason = NULL;
	va_end(ap);
}

bool alloc_drop_past_end(struct alloc *alloc, char *text, size_t size)
{
	int64_t now = (int64_t)time(NULL);

	if (alloc->end_given || !alloc->end_time || alloc->end_time > now)
		return false;
	snprintf(text, size,
		 "by this machine's clock the job's time limit passed %lld s ago (%.160s), but the "
		 "job still runs: the clock is wrong or the limit is not enforced; berth ignores "
		 "the end time",
		 (long long)(now - alloc->end_time),
		 alloc->end_reason ? alloc->end_reason : alloc_from_name(alloc->source));
	alloc->end_time = 0;
	return true;
}

char *alloc_node_list(const struct alloc *alloc, const bool *chosen)
{
	const char **names = calloc(alloc->node_count, sizeof *names);
	size_t count = 0;
	char *list;

	for (size_t i = 0; names && i < alloc->node_count; i++)
		if (!chosen || chosen[i])
			names[count++] = alloc->nodes[i].name;
	list = names ? hostlist_compress(names, count) : NULL;
	free(names);
	return list;
}

void alloc_free(struct alloc *alloc)
{
	if (!alloc)
		return;
	for (size_t i = 0; i < alloc->node_count; i++)
		free(alloc->nodes[i].name);
	free(alloc->nodes);
	free(alloc->job_id);
	free(alloc->why);
	free(alloc->end_reason);
	free(alloc->array_task);
	free(alloc->rendezvous);
	memset(alloc, 0, sizeof *alloc);
}

#define NODE(member) JSON_MEMBER(struct alloc_node, member)
#define ALLOC(member) JSON_MEMBER(struct alloc, member)

static const struct json_field node_members[] = {
	{"name", &json_as_text, NODE(name)},
	{"slots", &json_as_number, NODE(slots), JSON_NULLABLE, .min = 1},
	{"gpus", &json_as_number, NODE(gpus), JSON_NULLABLE},
	{0}};

static const struct json_field alloc_members[] = {
	{"source", &json_as_name, ALLOC(source), .max = ALLOC_FROM_LAUNCHER,
	 .name_of = alloc_from_name},
	{"job_id", &json_as_text, ALLOC(job_id)},
	{"nodes", &json_as_list, JSON_LIST(struct alloc, nodes, node_count),
	 .entry = &json_as_object, .members = node_members},
	{"this_node", &json_as_number, ALLOC(this_node), JSON_NULLABLE},
	{"end_time", &json_as_number, ALLOC(end_time), JSON_NULLABLE, .min = 1},
	{"end_why", &json_as_text, ALLOC(end_reason), JSON_NULLABLE},
	{"restarts", &json_as_number, ALLOC(restarts)},
	{"array_task", &json_as_text, ALLOC(array_task), JSON_NULLABLE},
	{"rdzv_endpoint", &json_as_text, ALLOC(rendezvous), JSON_NULLABLE},
	{"why", &json_as_text, ALLOC(why)},
	{0}};

json_t *alloc_to_json(const struct alloc *alloc)
{
	return json_fields_write(alloc_members, alloc);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "show.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/json.h"

const char *cell(struct cell *out, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(out->text, sizeof out->text, format, ap);
	va_end(ap);
	return out->text;
}

const char *cell_set(struct cell *out, const struct idset *set)
{
	char *text = idset_format(set);

	cell(out, "%s", text ? text : "?");
	free(text);
	return out->text;
}

const char *cell_gpus(struct cell *out, const struct plan_rank *rank)
{
	out->text[0] = '\0';
	for (size_t i = 0; i < rank->gpu_count; i++)
		text_append(out->text, sizeof out->text, "%s%d %s", i ? ", " : "",
			    rank->gpus[i].index, rank->gpus[i].pci);
	return out->text;
}

const char *cell_nics(struct cell *out, const struct plan_rank *rank)
{
	out->text[0] = '\0';
	for (size_t i = 0; i < rank->nic_count; i++) {
		const struct plan_nic *nic = &rank->nics[i];

		text_append(out->text, sizeof out->text, "%s%s %s%s", i ? ", " : "",
			    *nic->rdma ? nic->rdma : nic->net, path_class_name(nic->path),
			    nic->state == NIC_STATE_DOWN ? " down" : "");
	}
	return out->text;
}

const char *plural(size_t count)
{
	return count == 1 ? "" : "s";
}

json_t *environment_json(const struct env *changes)
{
	JSON_AUTO out = json_array();

	for (size_t i = 0; out && i < env_count(changes); i++) {
		const struct env_var *var = env_at(changes, i);

		if (json_array_append_new(
			    out, json_pack("{s:o, s:o, s:s, s:o}", "name", json_text(var->name),
					   "value", json_text(var->value), "from",
					   env_from_name(var->from), "why", json_text(var->why))))
			return NULL;
	}
	return json_incref(out);
}

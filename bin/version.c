/* SPDX-License-Identifier: BSD-3-Clause */
/* berth --version. With --modules: which libraries this berth runs with, and which modules it can
 * load. The path of a library says more than its number: LD_LIBRARY_PATH or a module file may have
 * put another copy in front of the system's. Without it nothing is loaded, because launchers run
 * `berth --version` on each node before the agent: see LAUNCHER_TRY_BERTH. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/json.h"
#include "base/module.h"
#include "table.h"
#include "verb.h"
#include "version.h"

/* A module of lib/modules, or berth itself (NULL), and the library it stands on. */
static const struct part {
	const char *title, *module, *symbol, *library, *without;
} parts[] = {
	{"hwloc", NULL, NULL, "libhwloc.so", NULL},
	{"jansson", NULL, NULL, "libjansson.so", NULL},
	{"libsodium", NULL, NULL, "libsodium.so", NULL},
	{"zlib", NULL, NULL, "libz.so", NULL},
	{"PMIx", "ranks-pmix", "ranks_client_pmix", "libpmix.so",
	 "MPI programs see a world of one rank"},
	/* of the trainer, from here on */
	{"MPI", "comm-mpi", "comm_mpi", "libmpi.so", "berth train does without it"},
	{"gloo", "comm-gloo", "comm_gloo", "libgloo.so", "berth train does without it"},
	{"NCCL", "comm-nccl", "comm_nccl", NULL, "berth train does without it"},
	{"CUDA", "device-cuda", "device_cuda", "libcudart.so", "berth train uses CPUs"},
	{"oneDNN", "device-cpu", "device_cpu", "libdnnl.so", "berth train needs a GPU"},
	{"libjpeg", "data-jpeg", "data_jpeg", "libjpeg.so",
	 "berth train reads no folders of images"},
};

#define TRAINER 5 /* the first part of the trainer */

struct loaded {
	const char *library;
	char *path;
};

/* For dl_iterate_phdr: keep the path of the first library that is named so, with links resolved. */
static int match(struct dl_phdr_info *info, size_t size, void *data)
{
	struct loaded *loaded = data;
	const char *slash = strrchr(info->dlpi_name, '/');

	(void)size;
	if (strncmp(slash ? slash + 1 : info->dlpi_name, loaded->library, strlen(loaded->library)))
		return 0;
	loaded->path = realpath(info->dlpi_name, NULL);
	return 1;
}

/* {title, module, found, library, reason} of a part. A new reference; NULL when memory is out. */
static json_t *part_json(const struct part *part, const char *search_path)
{
	struct loaded loaded = {.library = part->library};
	struct error err = {0};
	void *ops;
	int rc = part->module ? module_load(part->module, part->symbol, search_path, 0, &ops, &err)
			      : 0;

	if (!rc && part->library)
		dl_iterate_phdr(match, &loaded);
	json_t *json = json_pack("{s:s, s:o, s:b, s:o, s:o}", "title", part->title, "module",
				 json_text(part->module), "found", !rc, "library",
				 json_text(loaded.path), "reason", json_text(rc ? err.text : NULL));

	free(loaded.path);
	return json;
}

/* On a screen, "not installed" is enough; --json lists where berth looked. */
static void print_text(const json_t *list)
{
	struct table table = {0};
	struct paint paint = {"", "", "", "", .width = 1000}; /* paths are not wrapped */
	size_t i;
	json_t *json;
	bool trainer = false;

	json_array_foreach(list, i, json)
	{
		const char *why = json_string_value(json_object_get(json, "reason"));

		trainer |= i >= TRAINER && !(why && strstr(why, "is not installed"));
	}
	TABLE_ROW(&table, "part", "module", "library");
	json_array_foreach(list, i, json)
	{
		if (i >= TRAINER && !trainer)
			break;
		const char *library = json_string_value(json_object_get(json, "library"));
		const char *reason = json_string_value(json_object_get(json, "reason"));
		const char *module = json_string_value(json_object_get(json, "module"));
		const char *looked = reason ? strstr(reason, " (looked in ") : NULL;
		char text[1024];

		if (reason)
			snprintf(text, sizeof text, "no: %s: %.*s", parts[i].without,
				 looked ? (int)(looked - reason) : (int)strlen(reason), reason);
		else
			snprintf(text, sizeof text, "%s",
				 library	    ? library
				 : parts[i].library ? "built in"
						    : "loaded when used");
		TABLE_ROW(&table, parts[i].title, module ? module : "", text);
	}
	if (!trainer)
		TABLE_ROW(&table, "berth train", "", "not part of this installation");
	table_print(&table, &paint, 0);
}

static json_t *parts_json(const char *search_path)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < sizeof parts / sizeof *parts; i++)
		if (json_array_append_new(list, part_json(&parts[i], search_path))) {
			json_decref(list);
			return NULL;
		}
	return list;
}

int version_print(bool modules, bool as_json)
{
	struct error err = {0};
	struct env *env = modules ? env_capture() : NULL;
	JSON_AUTO list = env ? parts_json(env_get(env, "BERTH_MODULE_PATH")) : NULL;
	JSON_AUTO document = json_pack("{s:s, s:s, s:O*}", "schema", "berth.version/1", "version",
				       BERTH_VERSION, "parts", list);
	int rc = 0;

	env_free(env);
	if (!document || (modules && !list))
		rc = error_memory(&err, "the list of libraries");
	else if (as_json)
		rc = json_print(document, stdout, &err);
	else
		printf("berth %s\n", BERTH_VERSION);
	if (!rc && !as_json && list)
		print_text(list);
	return rc ? verb_fail(&err) : 0;
}

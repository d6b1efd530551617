/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks for variables of the job that do not do what the user meant, with plan's lint. It also
 * checks NCCL's configuration files, whose lines count if the environment lacks the variable. A
 * forgotten file overrides NCCL's own choice on the nodes that have it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "check/check_internal.h"

#define FILE_LIMIT (1 << 20)

/* The variables that decide which network NCCL uses. */
static const char *const network_names[] = {
	"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_IB_HCA",  "NCCL_IB_DISABLE",
	"NCCL_NET",	      "NCCL_NET_PLUGIN",    "NCCL_COMM_ID", "NCCL_HOSTID"};

static void read_line(const char *path, char *line, json_t *out)
{
	char *equals = strchr(line, '=');

	if (*line == '#' || !equals)
		return;
	*equals = '\0';
	for (size_t i = 0; i < sizeof network_names / sizeof *network_names; i++)
		if (!strcmp(line, network_names[i]))
			json_array_append_new(
				out, json_pack("{s:o, s:o, s:o}", "file", json_text(path), "name",
					       json_text(line), "value", json_text(equals + 1)));
}

static void read_conf(const char *path, json_t *out)
{
	char *text = NULL, *at = NULL;
	size_t size;

	if (file_read(path, FILE_LIMIT, &text, &size, NULL))
		return;
	for (char *line = strtok_r(text, "\r\n", &at); line; line = strtok_r(NULL, "\r\n", &at))
		read_line(path, line, out);
	free(text);
}

/* As in NCCL: the user's file first (NCCL_CONF_FILE, else ~/.nccl.conf), then the machine's. */
static json_t *collect(const struct prober *prober)
{
	const char *file = env_get(prober->env, "NCCL_CONF_FILE"),
		   *home = env_get(prober->env, "HOME");
	json_t *out = json_array();
	char path[4096];

	if (file)
		snprintf(path, sizeof path, "%s", file);
	else
		snprintf(path, sizeof path, "%s/.nccl.conf", home ? home : "");
	read_conf(path, out);
	read_conf("/etc/nccl.conf", out);
	return json_pack("{s:o}", "conf", out);
}

/* ---- in the controller ---- */

/* Does a rank's environment on that node have the variable? If so, the file's line has no
 * effect. */
static bool in_environment(const struct check *check, size_t node, const char *name)
{
	struct env *changes = NULL;
	bool set = env_get(check->request->launch->env, name) != NULL;

	if (!set && check->planned && check->plan.nodes[node].rank_count &&
	    !plan_environment(&check->plan, &check->inventories[node], node, 0,
			      &check->request->plan_request, check->request->launch->env, &changes,
			      NULL))
		set = env_get(changes, name) != NULL;
	env_free(changes);
	return set;
}

static bool judge_files(struct check *check, size_t node)
{
	json_t *entry;
	bool reported = false;
	size_t i;

	json_array_foreach(json_object_get(check_answer(check, node, "variables"), "conf"), i,
			   entry)
	{
		if (check->count < 2 || in_environment(check, node, check_text(entry, "name")))
			continue;
		check_add(check, node, "variables", CHECK_NOTE,
			  "remove the line, or set the variable in the job script",
			  "%s sets %s=%s, which NCCL uses here because the environment does not "
			  "set it",
			  check_text(entry, "file"), check_text(entry, "name"),
			  check_text(entry, "value"));
		reported = true;
	}
	return reported;
}

static void judge(struct check *check)
{
	JSON_AUTO list = plan_lint(check->request->launch->env, check->inventories, check->count);
	bool reported = json_array_size(list) > 0;
	json_t *text;
	size_t i;

	if (!list)
		return;
	json_array_foreach(list, i, text)
		check_add(check, 0, "variables", CHECK_NOTE,
			  "unset or correct it in the job script", "%s", json_string_value(text));
	for (size_t node = 0; node < check->count; node++)
		reported |= !check->nodes[node].missing && judge_files(check, node);
	if (!reported && !check->nodes[0].missing)
		check_add(check, 0, "variables", CHECK_OK, NULL,
			  "no suspicious environment variables");
}

const struct check_probe probe_variables = {"variables", .collect = collect, .judge = judge};

/* SPDX-License-Identifier: BSD-3-Clause */
/* NCCL uses Slingshot and EFA only through a plug-in (aws-ofi-nccl). Without it NCCL silently runs
 * on TCP, many times slower. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "check/check_internal.h"

static bool speaks_ofi(const char *fabric)
{
	return !strcmp(fabric, nic_kind_name(NIC_SLINGSHOT)) ||
	       !strcmp(fabric, nic_kind_name(NIC_EFA));
}

/* Look for it as NCCL does. NCCL_NET_PLUGIN names a library, a path or NAME of libnccl-net-NAME.so;
 * else it is libnccl-net.so. The versions of aws-ofi-nccl use different names. */
static bool load_plugin(const struct prober *prober, char *found, size_t size, char *problem,
			size_t problem_size)
{
	const char *wanted = env_get(prober->env, "NCCL_NET_PLUGIN");
	const char *names[] = {wanted, NULL, "libnccl-net-ofi.so", "libnccl-net.so",
			       "libnccl-net-aws-ofi.so"};
	char named[512];

	if (wanted) {
		snprintf(named, sizeof named, "libnccl-net-%s.so", wanted);
		names[1] = named;
	}
	*problem = '\0';
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		if (!names[i] || (wanted && i >= 2))
			continue;
		if (dlopen(names[i], RTLD_NOW | RTLD_LOCAL)) {
			snprintf(found, size, "%s", names[i]);
			return true;
		}
		snprintf(problem, problem_size, "%s", dlerror());
	}
	return false;
}

static json_t *collect(const struct prober *prober)
{
	char found[600] = "", problem[600] = "";

	if (!speaks_ofi(check_text(prober->begin, "fabric")) ||
	    json_object_get(prober->begin, "container"))
		return json_object();
	if (load_plugin(prober, found, sizeof found, problem, sizeof problem))
		return json_pack("{s:o}", "found", json_text(found));
	return json_pack("{s:o}", "problem", json_text(problem));
}

static void judge_node(struct check *check, size_t i, const json_t *answer)
{
	bool fabric = false;

	for (size_t n = 0; n < check->inventories[i].nic_count; n++)
		fabric |= check->inventories[i].nics[n].kind == NIC_SLINGSHOT ||
			  check->inventories[i].nics[n].kind == NIC_EFA;
	if (!answer)
		return;
	if (*check_text(answer, "found"))
		check_add(check, i, "plugin", CHECK_OK, NULL, "%s", check_text(answer, "found"));
	else if (!fabric)
		check_add(check, i, "plugin", CHECK_SKIPPED, NULL,
			  "neither Slingshot nor EFA on this node");
	else if (!check->inventories[i].gpu_count)
		check_add(check, i, "plugin", CHECK_SKIPPED, NULL,
			  "no GPU on this node, so NCCL is not used");
	else if (check->request->container)
		check_add(check, i, "plugin", CHECK_SKIPPED, NULL,
			  "the image needs it, see container");
	else
		check_add(check, i, "plugin", CHECK_FAULT,
			  "load the aws-ofi-nccl module, or add its lib directory to "
			  "LD_LIBRARY_PATH",
			  "no aws-ofi-nccl plug-in: NCCL would silently use TCP, which is "
			  "many times slower (%s)",
			  check_text(answer, "problem"));
}

const struct check_probe probe_plugin = {"plugin", .collect = collect, .judge_node = judge_node};

/* SPDX-License-Identifier: BSD-3-Clause */
/* The whole inventory, one kind of thing after the other. */
#include "inventory/inventory_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

static int read_names(struct discovery *discovery, struct error *err)
{
	struct inventory *inventory = discovery->inventory;
	const char *file = discovery->source->topology_file;
	char host[256];

	if (gethostname(host, sizeof host) != 0)
		return error_set(err, ERR_UNAVAILABLE, "cannot read this node's host name: %m");
	host[sizeof host - 1] = '\0';

	const char *captured = NULL;

	if (discovery->source->no_network)
		captured = topology_obj_info(hwloc_get_root_obj(discovery->topology), "HostName");
	inventory->node = strdup(captured ? captured : host);
	inventory->source = strdup(file ? file : "this machine");
	inventory->this_system = !file;
	if (!inventory->node || !inventory->source)
		return error_memory(err, "the machine's name");
	return 0;
}

static int read_addresses(struct discovery *discovery, struct error *err)
{
	struct ifaddrs *list = NULL;

	if (discovery->source->no_network)
		return 0;
	if (getifaddrs(&list) != 0)
		return error_set(err, ERR_UNAVAILABLE, "cannot list the network interfaces: %m");

	int rc = address_read(discovery, list, err);

	freeifaddrs(list);
	return rc;
}

/* The drivers know more than the topology: partitions, UUIDs, faults. */
static int read_gpus(struct discovery *discovery, struct error *err)
{
	const struct inventory_source *source = discovery->source;
	int rc = gpu_read(discovery, err);

	/* A capture shows another machine's GPUs, so this machine's drivers are not asked. */
	if (!rc && (!source->topology_file || source->nvml_library))
		rc = nvml_read(discovery, err);
	if (!rc && (!source->topology_file || source->sys_root))
		rc = kfd_read(discovery, err);
	for (size_t i = 0; i < discovery->inventory->gpu_count; i++)
		discovery->inventory->gpus[i].index = (int)i;
	return rc;
}

static void read_limits(struct discovery *discovery)
{
	char *text = NULL;
	size_t size;

	discovery->inventory->memory_limit_bytes = -1;
	discovery->inventory->cpu_limit_millis = -1;
	/* The limits below are this machine's, not those of the captured one. */
	if (discovery->source->topology_file)
		return;
	if (file_read("/proc/self/cgroup", 1 << 20, &text, &size, NULL) != 0)
		return;
	discovery->inventory->memory_limit_bytes =
		cgroup_memory_limit(discovery->source->sys_root, text);
	discovery->inventory->cpu_limit_millis =
		cgroup_cpu_limit(discovery->source->sys_root, text);
	free(text);
}

static void log_inventory(const struct inventory *inventory)
{
	log_info(LOG_INVENTORY, "%s: %zu cores in %zu packages, %zu NUMA nodes, %zu GPUs, %zu NICs",
		 inventory->source, inventory->core_count, inventory->package_count,
		 inventory->numa_count, inventory->gpu_count, inventory->nic_count);
	for (size_t i = 0; i < inventory->gpu_count; i++) {
		const struct inventory_gpu *gpu = &inventory->gpus[i];

		log_info(LOG_INVENTORY, "GPU %d %s (%s): %s", gpu->index, gpu->pci,
			 gpu->name ? gpu->name : "unknown", gpu->fault ? gpu->fault : "no fault");
	}
	for (size_t i = 0; i < inventory->nic_count; i++) {
		const struct inventory_nic *nic = &inventory->nics[i];

		log_info(LOG_INVENTORY, "NIC '%s' '%s' %s: %s, %lld Mbit/s, link %s%s", nic->net,
			 nic->rdma, nic->pci, nic_kind_name(nic->kind), (long long)nic->speed_mbps,
			 nic->state == NIC_STATE_UP	? "up"
			 : nic->state == NIC_STATE_DOWN ? "down"
							: "unknown",
			 nic->management ? ", left out: for management only" : "");
	}
}

int inventory_discover(const struct inventory_source *source, struct inventory *out,
		       struct error *err)
{
	struct inventory inventory = {0};
	struct discovery discovery = {.source = source, .inventory = &inventory};
	int rc = topology_open(source, &discovery.topology, err);

	if (rc)
		goto out;
	rc = read_names(&discovery, err);
	if (!rc)
		rc = topology_read(&discovery, err);
	if (!rc)
		rc = read_gpus(&discovery, err);
	if (!rc)
		rc = nic_read(&discovery, err);
	if (!rc)
		/* Distances need GPUs and NICs. nic_mark needs the distances, and addresses need
		 * the NICs that they are on. */
		rc = locality_read(&discovery, err);
	if (!rc)
		nic_mark(&inventory);
	if (!rc)
		rc = read_addresses(&discovery, err);
	if (!rc)
		read_limits(&discovery);
	if (!rc)
		log_inventory(&inventory);
out:
	free(discovery.gpu_objs);
	free(discovery.nic_objs);
	hwloc_bitmap_free(discovery.allowed);
	hwloc_bitmap_free(discovery.cpu_nodes);
	if (discovery.topology)
		hwloc_topology_destroy(discovery.topology);
	if (rc)
		inventory_free(&inventory);
	else
		*out = inventory;
	return rc;
}

const char *inventory_topology_file(const struct env *env)
{
	const char *file = env_get(env, "BERTH_TOPOLOGY");

	return file && *file ? file : NULL;
}

int inventory_discover_from_env(const struct inventory_source *source, const struct env *env,
				struct inventory *out, struct error *err)
{
	struct inventory_source here = *source;
	int rc;

	if (!here.topology_file)
		here.topology_file = inventory_topology_file(env);
	rc = inventory_discover(&here, out, err);
	if (rc)
		return here.topology_file && !source->topology_file
			       ? error_prefix(err, "BERTH_TOPOLOGY")
			       : rc;
	address_mark_scheduler(out, env_get(env, "SLURM_LAUNCH_NODE_IPADDR"));
	address_ban(out, env_get(env, INVENTORY_BANNED));
	/* The list in this environment names GPUs of this machine. */
	rc = out->this_system ? inventory_allow_visible_devices(out, env, err) : 0;
	if (rc)
		inventory_free(out);
	return rc;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Open a topology. This is the only file that chooses hwloc's components, filters and flags. */
#include "inventory/inventory_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "base/file.h"

#define XML_MAX (64 << 20)
#define TRY_LIMIT_S 20

/* Of these, hwloc would read several files per core or NUMA node. */
#if HWLOC_API_VERSION >= 0x20800
#define UNUSED_PARTS                                                                               \
	(HWLOC_TOPOLOGY_FLAG_NO_DISTANCES | HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |                      \
	 HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS)
#else
#define UNUSED_PARTS 0
#endif

/* hwloc 2 reports only EINVAL for what it cannot read; an hwloc 3 file gets its own message. */
static int refuse_version(const char *path, const char *text, struct error *err)
{
	const char *root = strstr(text, "<topology");

	if (!root)
		return error_set(err, ERR_DATA,
				 "%s: contains no <topology> element; expected an hwloc XML file "
				 "(create one with lstopo file.xml)",
				 path);

	const char *end = strchr(root, '>');
	const char *version = strstr(root, "version=");

	if (!end || !version || version > end)
		return 0; /* hwloc 1.x */
	version += strlen("version=");
	version += *version == '"' || *version == '\'';
	if (*version >= '3' && *version <= '9')
		return error_set(err, ERR_DATA,
				 "%s: hwloc XML of version %.*s; expected 1 or 2, which hwloc %d "
				 "can read. Write it again on that machine with \"lstopo "
				 "--export-xml-flags v2 file.xml\".",
				 path, (int)strcspn(version, "\"' \t\r\n/>"), version,
				 HWLOC_API_VERSION >> 16);
	return 0;
}

/* These components create a context on every GPU, need a display, search libpciaccess's tables
 * (pci), or bind this thread to each CPU in turn, where it waits for whatever runs there (x86).
 * hwloc's linux component reads the same data from /sys in less time. */
static void block_components(hwloc_topology_t topology)
{
	static const char *const names[] = {"cuda",	 "nvml", "opencl", "rsmi",
					    "levelzero", "gl",	 "pci",	   "x86"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
					      names[i]);
}

/* The PCI tree is needed for paths between GPUs and NICs. Reading it takes a millisecond per device
 * in some virtual machines. Without a GPU, /sys gives the NICs and their NUMA nodes. */
static enum hwloc_type_filter_e io_filter(const struct inventory_source *source)
{
	if (source->topology_file || source->all_devices)
		return HWLOC_TYPE_FILTER_KEEP_ALL;
	return gpu_on_bus(source->sys_root ? source->sys_root : "")
		       ? HWLOC_TYPE_FILTER_KEEP_IMPORTANT
		       : HWLOC_TYPE_FILTER_KEEP_NONE;
}

static int prepare(const struct inventory_source *source, const char *xml, size_t xml_size,
		   hwloc_topology_t *out)
{
	enum hwloc_type_filter_e io = io_filter(source);

	if (hwloc_topology_init(out) != 0)
		return -1;
	/* Keep disallowed objects, so that a device's locality is known even if the job may not use
	 * the cores near it. The allowed set is applied when reading. */
	hwloc_topology_set_flags(*out, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED |
					       (xml || source->all_devices ? 0 : UNUSED_PARTS));
	hwloc_topology_set_io_types_filter(*out, io);
	/* Only a device can lie near a cache (a GCD of an MI250X); each core has eight files about
	 * each of its caches. */
	if (io == HWLOC_TYPE_FILTER_KEEP_NONE)
		hwloc_topology_set_cache_types_filter(*out, HWLOC_TYPE_FILTER_KEEP_NONE);
	hwloc_topology_set_icache_types_filter(*out, HWLOC_TYPE_FILTER_KEEP_NONE);
	if (!xml)
		block_components(*out);
	else if (hwloc_topology_set_xmlbuffer(*out, xml, (int)xml_size + 1) != 0)
		goto failed;
	if (hwloc_topology_load(*out) == 0)
		return 0;
failed:;
	int saved = errno;

	hwloc_topology_destroy(*out);
	errno = saved;
	return -1;
}

/* All but the last silently make hwloc use another machine's topology or other components.
 * hwloc_topology_init loads all of hwloc's plugins: with Debian's these are X11, OpenCL and
 * libxml2, which take longer than the rest of the inventory, and OpenCL opens every GPU. This
 * machine's topology needs none of them, but a file needs libxml2 unless hwloc wrote it. */
static int load_topology(const struct inventory_source *source, const char *xml, size_t xml_size,
			 hwloc_topology_t *out)
{
	struct env_override overrides[] = {
		{.name = "HWLOC_XMLFILE"},
		{.name = "HWLOC_SYNTHETIC"},
		{.name = "HWLOC_FSROOT"},
		{.name = "HWLOC_THISSYSTEM"},
		{.name = "HWLOC_COMPONENTS"},
		{.name = "HWLOC_CPUID_PATH"},
		{.name = "HWLOC_PLUGINS_PATH", .value = "/nonexistent"},
	};
	size_t count = sizeof overrides / sizeof *overrides - (xml != NULL);

	env_override(overrides, count);

	int rc = prepare(source, xml, xml_size, out);
	int saved = errno;

	env_restore(overrides, count);
	errno = saved;
	return rc;
}

static void try_and_exit(const struct inventory_source *source, const char *xml, size_t xml_size)
{
	const struct rlimit no_core = {0, 0};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	hwloc_topology_t topology;

	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setrlimit(RLIMIT_CORE, &no_core);
	dup2(null, STDERR_FILENO);
	alarm(TRY_LIMIT_S);
	_exit(load_topology(source, xml, xml_size, &topology) == 0 ? 0 : 1);
}

/* On some damaged files hwloc fails an assertion or dereferences NULL, and it explains others on
 * stderr. So a child process tries the file first; at worst it dies. */
static int try_xml(const struct inventory_source *source, const char *xml, size_t xml_size,
		   struct error *err)
{
	const char *file = source->topology_file;
	pid_t child = fork();
	int status = 0;

	if (child == 0)
		try_and_exit(source, xml, xml_size);
	if (child < 0)
		return error_set(err, ERR_UNAVAILABLE,
				 "%s: cannot start a process to test the file: %s", file,
				 strerror(errno));
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR) /* another waiter reaped it: the load will show */
			return 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFEXITED(status))
		return error_set(err, ERR_DATA,
				 "%s: hwloc cannot load the file; expected a complete XML file "
				 "written by lstopo",
				 file);
	return error_set(err, ERR_DATA,
			 "%s: hwloc %s while reading it (signal %d): the file is damaged; write it "
			 "again with lstopo",
			 file, WTERMSIG(status) == SIGALRM ? "timed out" : "crashed",
			 WTERMSIG(status));
}

static int open_xml(const struct inventory_source *source, hwloc_topology_t *out, struct error *err)
{
	const char *file = source->topology_file;
	char *text = NULL;
	size_t size = 0;
	int rc = file_read_input(file, XML_MAX, FILE_INPUT_MS, &text, &size, err);

	if (rc)
		return rc;
	rc = refuse_version(file, text, err);
	if (!rc)
		rc = try_xml(source, text, size, err);
	if (!rc && load_topology(source, text, size, out) != 0)
		rc = error_set(err, ERR_DATA, "%s: hwloc cannot load the file", file);
	free(text);
	return rc;
}

int topology_open(const struct inventory_source *source, hwloc_topology_t *out, struct error *err)
{
	if (source->topology_file)
		return open_xml(source, out, err);

	hwloc_topology_t topology;

	if (load_topology(source, NULL, 0, &topology) != 0)
		return error_set(
			err, ERR_UNAVAILABLE,
			"hwloc cannot read this machine's topology: %s; check that /sys is mounted",
			strerror(errno));
	if (!hwloc_topology_is_thissystem(topology)) {
		hwloc_topology_destroy(topology);
		return error_set(err, ERR_INTERNAL, "hwloc returned another machine's topology");
	}
	*out = topology;
	return 0;
}

int inventory_topology_xml(const struct inventory_source *source, struct bytes *out,
			   struct error *err)
{
	hwloc_topology_t topology;
	char *text = NULL;
	int size = 0, rc = topology_open(source, &topology, err);

	if (rc)
		return rc;
	if (hwloc_topology_export_xmlbuffer(topology, &text, &size, 0) != 0)
		rc = error_set(err, ERR_INTERNAL, "hwloc cannot write the topology as XML: %s",
			       strerror(errno));
	else if (bytes_add(out, text, (size_t)size - 1) != 0) /* size counts the NUL */
		rc = error_memory(err, "the topology as XML");
	hwloc_free_xmlbuffer(topology, text);
	hwloc_topology_destroy(topology);
	return rc;
}

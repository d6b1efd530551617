/* SPDX-License-Identifier: BSD-3-Clause */
/* The inventory as a value: names, addresses, notes and PCI numbers. Reads nothing. */
#include "inventory/inventory_internal.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

const char *path_class_name(enum path_class path)
{
	static const char *const names[] = {"PIX", "PXB", "PHB", "NODE", "PKG", "SYS", "UNK"};

	return (unsigned)path <= PATH_UNKNOWN ? names[path] : "UNK";
}

const char *nic_kind_name(enum nic_kind kind)
{
	static const char *const names[] = {"ethernet", "roce",	     "fabric",
					    "efa",	"slingshot", "infiniband"};

	return (unsigned)kind <= NIC_INFINIBAND ? names[kind] : "ethernet";
}

void inventory_address_format(const struct inventory_address *address, int port, char *text,
			      size_t size)
{
	char host[INET6_ADDRSTRLEN] = "?";

	inet_ntop(address->family, address->bytes, host, sizeof host);
	if (!port)
		snprintf(text, size, "%s", host);
	else
		snprintf(text, size, address->family == AF_INET6 ? "[%s]:%d" : "%s:%d", host, port);
}

bool inventory_address_equal(const struct inventory_address *a, const struct inventory_address *b)
{
	return a->family == b->family &&
	       !memcmp(a->bytes, b->bytes, a->family == AF_INET6 ? 16 : 4);
}

bool inventory_address_in_subnet(const struct inventory_address *address,
				 const struct inventory_address *subnet)
{
	int bytes = subnet->prefix / 8, bits = subnet->prefix % 8;

	if (subnet->family != address->family ||
	    memcmp(subnet->bytes, address->bytes, (size_t)bytes))
		return false;
	return !bits || !((subnet->bytes[bytes] ^ address->bytes[bytes]) >> (8 - bits));
}

bool inventory_address_is_link_local(const struct inventory_address *address)
{
	const unsigned char *b = address->bytes;

	return address->family == AF_INET ? b[0] == 169 && b[1] == 254
					  : b[0] == 0xfe && (b[1] & 0xc0) == 0x80;
}

void inventory_note(struct inventory *inventory, const char *format, ...)
{
	char *text = NULL;
	va_list ap;

	va_start(ap, format);
	int n = vasprintf(&text, format, ap);
	va_end(ap);
	if (n < 0)
		return;

	char **note = array_add(&inventory->notes, &inventory->note_count, sizeof *note);

	if (note)
		*note = text;
	else
		free(text);
}

static void gpu_free(struct inventory_gpu *gpu)
{
	free(gpu->name);
	free(gpu->os_devices);
	free(gpu->uuid);
	free(gpu->mig);
	free(gpu->fault);
	free(gpu->claimed_by);
	idset_free(gpu->numa_os);
	idset_free(gpu->cpus_os);
}

void inventory_free(struct inventory *inventory)
{
	if (!inventory)
		return;
	for (size_t i = 0; inventory->cores && i < inventory->core_count; i++) {
		idset_free(inventory->cores[i].cpus_os);
		free(inventory->cores[i].claimed_by);
	}
	for (size_t i = 0; inventory->numas && i < inventory->numa_count; i++)
		idset_free(inventory->numas[i].cpus_os);
	for (size_t i = 0; inventory->gpus && i < inventory->gpu_count; i++)
		gpu_free(&inventory->gpus[i]);
	for (size_t i = 0; inventory->nics && i < inventory->nic_count; i++) {
		idset_free(inventory->nics[i].numa_os);
		idset_free(inventory->nics[i].cpus_os);
	}
	for (size_t i = 0; inventory->notes && i < inventory->note_count; i++)
		free(inventory->notes[i]);
	free(inventory->cores);
	free(inventory->numas);
	free(inventory->gpus);
	free(inventory->nics);
	free(inventory->notes);
	free(inventory->addresses);
	free(inventory->path);
	free(inventory->node);
	free(inventory->source);
	idset_free(inventory->allowed_cpus_os);
	*inventory = (struct inventory){0};
}

int pci_parse(const char *text, struct pci_id *out)
{
	struct pci_id id;
	int end = -1;

	/* sscanf's %x would accept blanks, signs and 0x. */
	if (strlen(text) > 16 || strchr(text, ' ') || strchr(text, 'x') || strchr(text, '-') ||
	    strchr(text, '+') ||
	    sscanf(text, "%8x:%2x:%2x.%1x%n", &id.domain, &id.bus, &id.dev, &id.func, &end) != 4 ||
	    end < 0 || text[end] != '\0' || id.dev > 31 || id.func > 7)
		return -1;
	*out = id;
	return 0;
}

int pci_compare(struct pci_id a, struct pci_id b)
{
	if (a.domain != b.domain)
		return a.domain < b.domain ? -1 : 1;
	if (a.bus != b.bus)
		return a.bus < b.bus ? -1 : 1;
	if (a.dev != b.dev)
		return a.dev < b.dev ? -1 : 1;
	return (a.func > b.func) - (a.func < b.func);
}

void pci_format(struct pci_id id, char out[20])
{
	snprintf(out, 20, "%04x:%02x:%02x.%x", id.domain, id.bus & 0xff, id.dev & 0x1f,
		 id.func & 7);
}

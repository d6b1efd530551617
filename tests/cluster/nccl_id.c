/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rendezvous address does NCCL choose in this process's environment? ncclGetUniqueId needs no
 * GPU, and the ID that it returns contains the address. This program compares it with the plan: on
 * rank 0 with MASTER_ADDR, and on each rank with the interface that the other libraries get. It
 * loads NCCL at run time, so the build does not need NCCL. Exits with code 0 if both agree, 1 if
 * they differ, 77 without NCCL. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_BYTES 128 /* NCCL_UNIQUE_ID_BYTES: fixed by NCCL's ABI */

struct id {
	char bytes[ID_BYTES];
};

/* bootstrap.h since 2.14: a magic number, then the socket's address. */
static int address_of(const struct id *id, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof *out);
	memcpy(out, id->bytes + 8, sizeof(struct sockaddr_in6));
	return out->ss_family == AF_INET || out->ss_family == AF_INET6 ? 0 : -1;
}

static const void *bytes_of(const struct sockaddr *address, size_t *size)
{
	*size = address->sa_family == AF_INET6 ? 16 : 4;
	return address->sa_family == AF_INET6
		       ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)
				 ->sin6_addr
		       : &((const struct sockaddr_in *)(const void *)address)->sin_addr;
}

/* Whose address is it? */
static const char *iface_of(const struct sockaddr_storage *address, char *out, size_t out_size)
{
	struct ifaddrs *list = NULL;
	size_t size;
	const void *bytes = bytes_of((const struct sockaddr *)address, &size);

	snprintf(out, out_size, "no interface");
	if (getifaddrs(&list))
		return out;
	for (struct ifaddrs *at = list; at; at = at->ifa_next) {
		size_t its_size;

		if (!at->ifa_addr || at->ifa_addr->sa_family != address->ss_family)
			continue;
		if (!memcmp(bytes_of(at->ifa_addr, &its_size), bytes, size))
			snprintf(out, out_size, "%s", at->ifa_name);
	}
	freeifaddrs(list);
	return out;
}

static const char *variable(const char *name)
{
	const char *value = getenv(name);

	return value ? value : "";
}

int main(void)
{
	void *library = dlopen("libnccl.so.2", RTLD_NOW);
	int (*version)(int *) = library ? (int (*)(int *))dlsym(library, "ncclGetVersion") : NULL;
	int (*make)(struct id *) =
		library ? (int (*)(struct id *))dlsym(library, "ncclGetUniqueId") : NULL;
	const char *rank = variable("RANK"), *wanted = variable("GLOO_SOCKET_IFNAME");
	struct sockaddr_storage address;
	char text[INET6_ADDRSTRLEN] = "?", iface[64];
	int number = 0, rc, agrees;
	struct id id;
	size_t size;

	if (!make || !version || version(&number)) {
		printf("no NCCL: %s\n", library ? "without ncclGetUniqueId" : dlerror());
		return 77;
	}
	rc = make(&id);
	if (rc || address_of(&id, &address)) {
		printf("rank %s: ncclGetUniqueId: %d, or an id that this test cannot read\n", rank,
		       rc);
		return 1;
	}
	inet_ntop(address.ss_family, bytes_of((struct sockaddr *)&address, &size), text,
		  sizeof text);
	iface_of(&address, iface, sizeof iface);
	agrees = !strcmp(iface, wanted) &&
		 (strcmp(rank, "0") || !strcmp(text, variable("MASTER_ADDR")));
	printf("rank %s: NCCL %d meets at %s on %s; the plan: %s on %s, NCCL_SOCKET_IFNAME '%s': "
	       "%s\n",
	       rank, number, text, iface, variable("MASTER_ADDR"), wanted,
	       variable("NCCL_SOCKET_IFNAME"), agrees ? "agrees" : "DIFFERS");
	return !agrees;
}

# SPDX-License-Identifier: BSD-3-Clause
# awk -f names.awk -f topology.awk FILE: an hwloc XML file without what names a machine, its site or its users. It keeps only
# the elements, attributes and infos listed here. The lines of the file REPORT (-v report=REPORT) are added to the machine.
# hwloc writes one element per line and writes quotes within values as &quot;.

BEGIN {
	names("object page_type info topology", element)
	names("type os_index cpuset complete_cpuset allowed_cpuset nodeset complete_nodeset allowed_nodeset " \
		"online_cpuset gp_index local_memory cache_size cache_linesize cache_associativity cache_type depth " \
		"bridge_type bridge_pci pci_busid pci_type pci_link_speed osdev_type kind subkind size count version", attribute)
	names("Architecture OSName OSRelease hwlocVersion Backend DMIProductName DMISysVendor CPUVendor CPUFamilyNumber " \
		"CPUModelNumber CPUModel CPUStepping PCIVendor PCIDevice Inclusive GPUVendor GPUModel CUDAMultiProcessors " \
		"CUDACoresPerMP CUDAGlobalMemorySize RSMIVRAMSize RSMIVisibleVRAMSize RSMIGTTSize LevelZeroVendor LevelZeroModel " \
		"LevelZeroBrand LevelZeroHBMSize LevelZeroDDRSize LevelZeroMemorySize LevelZeroSubdevices Port", info)
	names("CUDA NVML OpenCL RSMI LevelZero NVMe Disk Slingshot BXI OmniPath InfiniBand MCDRAM HBM DRAM SPM GPUMemory " \
		"NVIDIA AMD Intel NVSwitch", subtype)
}

function names(text, set,    list, i) {
	for (i = split(text, list, " "); i; i--)
		set[list[i]] = 1
}

# The value of attribute NAME in the line, or "".
function value(name,    at, rest) {
	at = index($0, " " name "=\"")
	if (!at)
		return ""
	rest = substr($0, at + length(name) + 3)
	return substr(rest, 1, index(rest, "\"") - 1)
}

# A version: digits and dots at the beginning.
function version_of(text) {
	return match(text, /^[0-9.]+/) ? substr(text, 1, RLENGTH) : ""
}

# What the kernel and drivers write about products; no addresses, no paths.
function product(text) {
	gsub(/[^A-Za-z0-9 ().,+&;_-]/, "", text)
	return text
}

function safe_info(name, text) {
	if (name == "Address") { # its length tells InfiniBand from Ethernet
		gsub(/[0-9a-fA-F]/, "0", text)
		return text ~ /^(00:)*00$/ ? text : ""
	}
	if (name ~ /^Port[0-9]+State$/)
		return text + 0
	if (name ~ /^Port[0-9]+LID$/) # berth reads only whether there is one
		return text ~ /^0x0*$|^0*$/ ? "0x0" : "0x1"
	if (name ~ /UUID$/ && name ~ /^[A-Za-z]+$/) # drivers give a partition an empty one
		return text ~ /^[0x-]*$/ ? "" : stand_in("device-", text)
	if (!(name in info))
		return ""
	return name == "OSRelease" ? version_of(text) : product(text)
}

# The same line with its allowed attributes.
function safe_line(tag,    rest, out, name, text, end) {
	end = /\/>[ \t]*$/ ? "/>" : ">"
	match($0, /^ */)
	out = substr($0, 1, RLENGTH) "<" tag
	rest = $0
	while (match(rest, / [a-z_]+="[^"]*"/)) {
		name = substr(rest, RSTART + 1, RLENGTH - 2)
		rest = substr(rest, RSTART + RLENGTH)
		text = substr(name, index(name, "\"") + 1)
		name = substr(name, 1, index(name, "=") - 1)
		if (name == "name" && value("type") == "OSDev")
			out = out " name=\"" safe_device(text) "\""
		else if (name == "subtype" && (text in subtype))
			out = out " subtype=\"" text "\""
		else if ((name in attribute) && text ~ /^[]A-Za-z0-9_.,:;[ -]*$/)
			out = out " " name "=\"" text "\""
	}
	print out end
}

{
	tag = $1
	sub(/^</, "", tag)
	sub(/[^a-z_].*$/, "", tag)
}
/^ *<\?xml / || /^ *<!DOCTYPE topology / || /^ *<\/(object|topology)>$/ {
	print
	next
}
!/^ *<[a-z]/ || !(tag in element) { next }
tag == "info" {
	text = safe_info(value("name"), value("value"))
	match($0, /^ */)
	if (text != "")
		print substr($0, 1, RLENGTH) "<info name=\"" value("name") "\" value=\"" text "\"/>"
	next
}
{ safe_line(tag) }
tag == "object" && !machine++ {
	# Without a name, berth plan would show that of the machine that reads the file.
	print "    <info name=\"HostName\" value=\"node\"/>"
	while (report != "" && (getline line < report) > 0)
		print "    " line
}

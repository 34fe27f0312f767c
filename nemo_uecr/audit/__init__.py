"""The paper's offline audits: from scored responses to numbers, a figure and a section of the report."""

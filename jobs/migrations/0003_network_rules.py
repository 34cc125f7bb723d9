from django.db import migrations, models


class Migration(migrations.Migration):
    """Guarded networks. What a job has stays: only the default of new ones is another."""

    dependencies = [
        ("jobs", "0002_artifact_span"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="domains",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="job",
            name="allow_private_network",
            field=models.BooleanField(default=False),
        ),
        migrations.AlterField(
            model_name="job",
            name="network",
            field=models.CharField(
                choices=[
                    ("none", "No network"),
                    ("internet", "Internet access"),
                    ("domains", "Allowed domains only"),
                    ("unrestricted", "Unrestricted network"),
                ],
                default="internet",
                max_length=20,
            ),
        ),
    ]
